"""Whoever writes about a comparison can name what its parts are from."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedreach._util import registry
from fedreach.api.comparison import ALWAYS_CITED, CORRECTIONS, bibliography, entries, reference
from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.experiment.components import OPTIMIZERS
from fedreach.report.numbers import RunSet

OURS = r"ours|a control of ours"  # references that name no paper, or one besides


def referenced() -> list[tuple[str, str, str]]:
    """Return kind, name and reference of all built-in things that have one and that an experiment may name."""
    kinds = [kind for kind, row in registry.COMPONENT_TYPES.items() if row.path is not None or kind == "metric"]
    found = [(kind, name, reference(kind, name)) for kind in kinds for name in registry.table(kind)]
    return [each for each in found if each[2]]


def made(config: dict[str, Any], *, seeds: int = 2, plan: AnalysisPlan | None = None) -> RunSet:
    run = SimpleNamespace(config=config)
    many = SimpleNamespace(runs=(run,), methods=("a", "b"), seeds=tuple(range(seeds)), plan=plan or AnalysisPlan())
    return cast(RunSet, many)


def keys(text: str) -> list[str]:
    return re.findall(r"^@\w+\{(.*),$", text, re.MULTILINE)


def test_every_reference_of_a_part_is_a_paper_of_the_bibliography() -> None:
    found = referenced()
    assert len(found) > 50
    unknown = [each for each in found if not any(entry.is_named_in(each[2]) for entry in entries())]
    assert [each for each in unknown if not re.match(OURS, each[2])] == []


def test_every_arxiv_number_of_a_reference_is_in_the_bibliography() -> None:
    known = {entry.fields.get("eprint") for entry in entries()}
    assert {number for _, _, said in referenced() for number in re.findall(r"\d{4}\.\d{5}", said)} <= known


def test_no_paper_of_the_bibliography_is_from_nowhere() -> None:
    said = [text for _, _, text in referenced()]
    said += [registry.paragraph(optimizer, "Reference") for optimizer in OPTIMIZERS.values()]
    idle = [entry.key for entry in entries() if not any(entry.is_named_in(text) for text in said)]
    assert set(idle) == {*ALWAYS_CITED, *CORRECTIONS.values(), "wilcoxon1945"}


def test_entries_are_whole() -> None:
    assert len({entry.key for entry in entries()}) == len(entries())
    for entry in entries():
        assert {"author", "title"} <= set(entry.fields), entry.key
        assert "year" in entry.fields or entry.text.startswith("@unpublished"), entry.key
        assert entry.text.count("{") == entry.text.count("}"), entry.key
        assert entry.text.isascii(), entry.key  # BibTeX sorts bytes


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("selection", "power_of_choice", {"cho2022"}),
        ("selection", "multinomial", {"li2020", "fraboni2021"}),
        ("weighting", "by_examples", {"mcmahan2017"}),
        ("weighting", "fednova", {"wang2020"}),
        ("loss", "fedlc", {"zhang2022"}),
        ("adaptation", "label_shift", {"saerens2002", "alexandari2020"}),
        ("data", "fashion_mnist", {"xiao2017"}),
        ("partition", "dirichlet_by_class", {"hsu2019", "yurochkin2019"}),
    ],
)
def test_a_reference_means_its_papers_and_no_other(kind: str, name: str, meant: set[str]) -> None:
    assert {entry.key for entry in entries() if entry.is_named_in(reference(kind, name))} == meant


def test_a_bibliography_has_what_was_used_and_nothing_else() -> None:
    config = {
        "data": {"name": "digits"},
        "method": {"selection": {"name": "power_of_choice"}, "solver": "fedprox", "weighting": "mine.py:Own"},
        "evaluation": {"metrics": [{"name": "accuracy"}, {"name": "auroc"}]},
        "local": {"optimizer": {"name": "adam"}},
    }
    text = bibliography(made(config))
    assert set(keys(text)) == {"fedreach", "cho2022", "li2020", "alpaydin1998", "fawcett2006", "kingma2015", "holm1979"}
    assert "% For selection power_of_choice\n@inproceedings{cho2022," in text
    assert "No reference is known for metric accuracy, weighting mine.py:Own." in text
    assert "holm1979" not in keys(bibliography(made(config, seeds=1)))
    assert "westfall1993" in keys(bibliography(made(config, plan=AnalysisPlan(correction="max_t"))))
    assert "wilcoxon1945" in keys(bibliography(made(config, seeds=10)))
    assert "wilcoxon1945" not in keys(bibliography(made(config, seeds=9)))
    assert "wilcoxon1945" not in keys(bibliography(made(config, seeds=10, plan=AnalysisPlan(test="t"))))


def test_fedreach_is_cited_as_in_its_citation_file() -> None:
    said = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
    (own,) = [entry for entry in entries() if entry.key == "fedreach"]
    assert f"version: {own.fields['version']}" in said
    assert f"date-released: {own.fields['year']}" in said
    assert f'title: "{own.fields["title"].replace("{", "").replace("}", "")}"' in said


def test_the_name_of_custom_code_is_no_entry_and_no_line_of_its_own() -> None:
    plain, hostile = (
        bibliography(made({"method": {"selection": {"name": name}}}))
        for name in ("my.py:F", "@misc{x,\n@article{y.py:F\ud800")
    )
    hostile.encode()
    assert hostile.count("@") == plain.count("@")
    assert hostile.count("\n") == plain.count("\n")
