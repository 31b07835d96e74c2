// Search in pages that are opened as files, where browsers start no workers: the worker's script runs in a frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(script) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc =
        "<script>self.postMessage = data => frameElement.answer(data)</script><script src='" + script + "'></script>"
      this.ready = new Promise(done => this.frame.addEventListener("load", done))
      document.body.append(this.frame)
      this.frame.answer = data => this.hand(this, data)
    }

    postMessage(data) {
      this.ready.then(() => this.hand(this.frame.contentWindow, data))
    }

    hand(to, data) {
      const copy = structuredClone(data) // a copy, and later, as between threads
      setTimeout(() => to.onmessage && to.onmessage({ data: copy }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
