// What the theme leaves out: a table that scrolls is reached by the keyboard, and the buttons of each block of code are
// no landmark, as landmarks of one name tell nobody where they are.
window.addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    table.tabIndex = 0;
    table.setAttribute("role", "group");
    table.setAttribute("aria-label", "table");
  }
  for (const buttons of document.querySelectorAll(".md-code__nav")) {
    buttons.setAttribute("role", "none");
  }
});
