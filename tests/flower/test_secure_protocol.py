"""The protocol of secure aggregation: clients that leave at any step, and servers that lie."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ComponentError, ConfigError, TrainingError
from fedreach.federation.secure_aggregation import SecureAggregation, weighted_mean_of_shares
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.secret_sharing import new_private_key, public_key
from fedreach.flower.secure import SECURE, refuse_revealing_groups, warn_of_trust
from fedreach.flower.secure_server import IncompleteError, SecureSum

from .deployment import APP
from .fuzzing import changed
from .secure_cohort import STEPS, Adding, step_of, update_of, weight_of, write_roster

TEN = range(2, 12)


def expected(adding: Adding, survivors: list[int]) -> np.ndarray:
    """What the simulator computes over these clients of the cohort."""
    raw = np.array([weight_of(client) for client in survivors])
    update = np.stack([update_of(client, adding.size) for client in survivors])
    return weighted_mean_of_shares(raw, update, len(adding.grid.node_of))


def check_sum(adding: Adding, survivors: list[int]) -> None:
    mean, counted = adding.mean()
    assert counted == survivors
    assert mean.tobytes() == expected(adding, survivors).tobytes()


@pytest.mark.parametrize("signs", [False, True], ids=["trusting", "roster"])
@pytest.mark.parametrize("step", STEPS)
def test_three_of_ten_may_leave_at_each_step(step: str, signs: bool, tmp_path: Path) -> None:
    roster = write_roster(tmp_path, TEN) if signs else None
    adding = Adding(TEN, leaving=dict.fromkeys((2, 5, 11), step), roster=roster)
    left = {2, 5, 11} if step in ("keys", "shares", "mask") else set()
    check_sum(adding, [client for client in TEN if client not in left])


@pytest.mark.parametrize("step", ["keys", "shares", "mask", "reveal"])
def test_if_four_of_ten_leave_the_sum_is_lost_and_no_share_is_revealed(step: str) -> None:
    adding = Adding(TEN, leaving=dict.fromkeys((2, 3, 5, 11), step))
    with pytest.raises(IncompleteError, match=r"needs the replies of at least 7 of 10 clients; got [06]"):
        adding.mean()
    states = [context.state for context in adding.grid.contexts.values()]
    revealed = [state for state in states if "secure" in state and json.loads(state["secure"]["kept"])["revealed"]]
    assert len(revealed) == (6 if step == "reveal" else 0)  # of 6 clients, one fewer than a secret needs
    adding.leaving, adding.round = {}, 2
    check_sum(adding, [*TEN])  # the next sum has keys of its own


def test_with_a_threshold_of_a_half_a_third_may_leave_of_three() -> None:
    assert SecureAggregation(threshold=0.5).needed_replies(3) == 2
    check_sum(Adding(range(3), leaving={1: "mask"}, statistics=SecureAggregation(threshold=0.5)), [0, 2])


@pytest.mark.parametrize("threshold", [0.49, 1.0])
def test_a_threshold_at_which_the_server_could_get_both_secrets_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match=r"threshold must be in \[0\.5, 1\)"):
        SecureAggregation(threshold=threshold)


def test_by_default_more_than_two_thirds_must_reply_and_twice_as_many_shares_are_more_than_there_are() -> None:
    for n in range(2, 1001):
        assert SecureAggregation().needed_replies(n) == max(2, 2 * n // 3 + 1)
        assert 2 * SecureAggregation(threshold=0.5).needed_replies(n) > n


def test_a_client_that_trains_too_late_is_unmasked_as_one_that_left() -> None:
    """Its words may still arrive: they keep the mask of its seed, which is never revealed."""
    adding = Adding(range(4), leaving={3: "mask"})
    check_sum(adding, [0, 1, 2])
    kept = json.loads(adding.grid.contexts[0].state["secure"]["kept"])
    assert kept["session"]["done"] == "reveal"
    assert not kept["session"]["seed"]  # secrets are deleted
    assert not kept["session"]["shares"]


@pytest.mark.slow
def test_two_hundred_sums_with_leavers_at_random_steps_equal_the_simulator_s(tmp_path: Path) -> None:
    lost = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        clients = sorted(rng.choice(40, size=rng.integers(2, 13), replace=False).tolist())
        leaving = {client: str(rng.choice(STEPS)) for client in clients if rng.random() < 0.25}
        folder = tmp_path / str(seed)
        folder.mkdir()
        roster = write_roster(folder, clients) if seed % 4 == 0 else None
        adding = Adding(clients, leaving=leaving, roster=roster, size=17)
        survivors = [c for c in clients if leaving.get(c, "reveal") in ("sign", "reveal")]
        staying = [c for c in clients if c not in leaving or (roster is None and leaving[c] == "sign")]
        if roster is None:  # without signatures there is no such step, so they leave at the next
            staying = [c for c in clients if c not in leaving]
        needed = SecureAggregation().needed_replies(len(clients))
        if len(staying) >= needed:
            check_sum(adding, survivors)
            continue
        lost += 1
        with pytest.raises(IncompleteError):
            adding.mean()
    assert 20 < lost < 120


# ------------------------------------------------------------------------------------------- servers that lie


def content(message: Message) -> dict[str, Any]:
    return json.loads(message.content[SECURE]["content"])


def at(step: str, change: Callable[[int, dict[str, Any]], object]) -> Callable[[int, Message], None]:
    """A `spoil` that changes the content of one step for client 2."""

    def spoil(client: int, message: Message) -> None:
        if step_of(message) == step and client == 2:
            changed = content(message)
            change(client, changed)
            message.content[SECURE]["content"] = json.dumps(changed)

    return spoil


def swap_key(client: int, sent: dict[str, Any]) -> None:
    sent["keys"]["7"]["masking"] = public_key(new_private_key()).hex()


def test_a_key_that_the_server_swapped_is_refused_with_a_roster(tmp_path: Path) -> None:
    adding = Adding(TEN, roster=write_roster(tmp_path, TEN), spoil=at("shares", swap_key))
    check_sum(adding, [client for client in TEN if client != 2])
    assert "passed on for client 7 do not have the signature of this client in secure-roster" in adding.refused[2]


def test_without_a_roster_clients_warn_that_they_trust_the_server(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_trust.cache_clear()
    adding = Adding(range(3))
    with caplog.at_level(WARNING, logger="flwr"):
        adding.mean()
        adding.round = 2
        adding.mean()
    said = [record.getMessage() for record in caplog.records if "trusts the server to pass on" in record.getMessage()]
    assert len(said) == 1  # once in a process
    assert "'secure-key' and 'secure-roster'" in said[0]


def test_a_server_that_names_a_smaller_cohort_to_some_lowers_no_threshold(tmp_path: Path) -> None:
    """A client told of three clients would be content with three, though ten have shares."""

    def shrink(client: int, sent: dict[str, Any]) -> None:
        sent["cohort"] = [2, 3, 4]

    def shrink_keys(client: int, message: Message) -> None:
        at("keys", shrink)(client, message)
        at("shares", lambda _, sent: sent.update(keys={i: sent["keys"][i] for i in "234"}))(client, message)

    adding = Adding(TEN, roster=write_roster(tmp_path, TEN), spoil=shrink_keys)
    with pytest.raises(IncompleteError):
        adding.mean()
    assert "passed on for client 3 do not have the signature" in adding.refused.pop(2)
    assert all("passed on for client 2 do not" in reason for reason in adding.refused.values())
    assert len(adding.refused) == 9


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        ("keys", lambda _, sent: sent.update(cohort=[2]), "a cohort of at least 2 different clients"),
        ("keys", lambda _, sent: sent.update(cohort=[3, 4]), "including client 2"),
        ("shares", lambda _, sent: [sent["keys"].pop(i) for i in "3456"], "keys of at least 7 of 10 clients; got 6"),
        ("shares", lambda _, sent: sent["keys"].update({"7": sent["keys"]["6"]}), "two clients have the same key"),
        ("shares", lambda _, sent: sent["keys"]["7"].update(masking=bytes(32).hex()), "a key that hides nothing"),
        ("shares", lambda _, sent: sent["keys"].update({"2": sent["keys"]["6"]}), "as they were sent"),
        ("mask", lambda _, sent: [sent["sealed"].pop(i) for i in "3456"], "shares of at least 7 of 10 clients; got 6"),
        ("mask", lambda _, sent: sent["sealed"].pop("2"), "must pass on the shares of client 2"),
        ("mask", lambda _, sent: sent["sealed"].update({"7": sent["sealed"]["6"]}), "client 7 was changed"),
        ("mask", lambda _, sent: sent["groups"].update({"": [2, 40]}), "sums must be over clients of the cohort"),
        ("mask", lambda _, sent: sent["groups"].update({"": [2]}), "TrainingError"),
        ("reveal", lambda _, sent: sent.update(survivors=[*range(2, 8)]), "words of at least 7 of 10 clients; got 6"),
        ("reveal", lambda _, sent: sent["survivors"].remove(2), "including 2; got"),
        ("reveal", lambda _, sent: sent["survivors"].append(40), "must be clients with shares"),
    ],
)
def test_a_client_refuses_in_words(step: str, change: Callable[[int, dict[str, Any]], object], why: str) -> None:
    adding = Adding(TEN, spoil=at(step, change))
    adding.mean()
    assert why in adding.refused[2]
    assert [*adding.refused] == [2]


@pytest.mark.parametrize("step", ["shares", "mask", "reveal"])
def test_no_step_is_answered_twice(step: str) -> None:
    """Asked again for unmasking with other survivors, clients would reveal both secrets of client 7."""
    sent: list[tuple[int, Message]] = []
    adding = Adding(TEN, leaving={7: "mask"}, spoil=lambda client, message: sent.append((client, message)))
    adding.mean()
    for client, message in sent:
        if step_of(message) == step and client != 7:
            if step == "reveal":
                message.content[SECURE]["content"] = json.dumps({"survivors": [*TEN]})
            reply = adding.grid._answer(client, message)
            assert f"must follow the step '{STEPS[STEPS.index(step) - (1 if step != 'reveal' else 2)]}'" in (
                reply.error.reason
            )


@pytest.mark.parametrize("skipped", [False, True])
def test_with_a_roster_clients_reveal_shares_only_of_survivors_that_t_clients_signed(
    skipped: bool, tmp_path: Path
) -> None:
    """Else a server would tell one half that client 7 left, and the other half that it stayed."""

    def spoil(client: int, message: Message) -> None:
        if step_of(message) in ("sign", "reveal") and client < 6:
            changed = content(message)
            changed["survivors"].remove(7)
            message.content[SECURE]["content"] = json.dumps(changed)
        if step_of(message) == "sign" and skipped:
            message.content[SECURE]["step"] = "reveal"

    adding = Adding(TEN, roster=write_roster(tmp_path, TEN), spoil=spoil)
    with pytest.raises(IncompleteError):
        adding.mean()
    why = "must follow the step 'sign'" if skipped else "signatures of the same list of at least 7 of 10 clients; got"
    assert len(adding.refused) == 10
    assert all(why in reason for reason in adding.refused.values())


def test_a_second_sum_over_the_same_round_is_refused() -> None:
    """The difference of sums over two cohorts would be the report of one client."""
    adding = Adding(range(4))
    adding.mean()
    with pytest.raises(IncompleteError):
        adding.mean()
    assert all("report 1 is already in a sum" in reason for reason in adding.refused.values())
    assert len(adding.refused) == 4


def test_a_round_that_was_not_unmasked_may_be_repeated() -> None:
    """As by a server that was restarted in the midst of it."""
    adding = Adding(range(4), leaving={0: "mask", 1: "mask"})
    with pytest.raises(IncompleteError):
        adding.mean()
    adding.leaving = {}
    adding.registry.process, adding.registry.sums = "another", 0
    check_sum(adding, [0, 1, 2, 3])


def test_signed_keys_are_not_used_for_two_sums(tmp_path: Path) -> None:
    """A server that knows a mask key of an earlier sum could pass it on again under the same number."""
    adding = Adding(range(3), roster=write_roster(tmp_path, range(3)))
    adding.mean()
    adding.registry.sums, adding.round = 0, 2
    with pytest.raises(IncompleteError):
        adding.mean()
    assert all("the number of a sum of secure aggregation must be above 1; got 1" in r for r in adding.refused.values())


@pytest.mark.parametrize(
    "groups",
    [
        [[1, 2, 3, 4], [2, 3, 4]],  # the difference is client 1
        [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6], [1, 4, 5, 6]],  # overlapping: 2 and 3, or the sums' combination
        [[3, 4, 5], [1, 2, 5]],  # both omit others, and what is left is client 5
        [[1]],
    ],
)
def test_sums_whose_differences_reveal_a_client_are_refused(groups: list[list[int]]) -> None:
    everyone = sorted({client for group in groups for client in group} | {1, 2})
    with pytest.raises(TrainingError, match="would reveal the report of a single client"):
        refuse_revealing_groups(dict(zip("abc", groups, strict=False)), everyone)


def test_sums_that_each_leave_out_a_part_of_their_own_are_allowed() -> None:
    groups = {"0": [1, 2, 3, 4, 5, 6], "1": [3, 4, 5, 6], "2": [1, 2, 5, 6], "3": [1, 2, 3, 4]}
    refuse_revealing_groups(groups, [1, 2, 3, 4, 5, 6])


# ------------------------------------------------------------------------------------------- clients that lie, files


@pytest.mark.parametrize(
    ("step", "reply", "why"),
    [
        ("keys", {}, "cannot be read"),
        ("keys", {"sealing": "zz", "masking": "zz" * 32}, "cannot be read"),
        ("keys", {"sealing": "00" * 32, "masking": "01" + "00" * 31}, "hide nothing"),
        ("shares", {"2": "00"}, "must be 94 bytes for each of the clients"),
        ("shares", [], "cannot be read"),
        ("shares", None, "cannot be read"),
    ],
)
def test_a_malformed_reply_costs_no_more_than_its_client(
    step: str, reply: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adding, blamed = Adding(TEN), dict[str, str]()

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        made = answer()
        if client == 2 and step_of(message) == step:
            made.content[SECURE] = ConfigRecord({} if reply is None else {"content": json.dumps(reply)})
        return made

    adding.grid.answering = answering
    monkeypatch.setattr(ClientRegistry, "blame", lambda self, who, error: blamed.update({who: str(error)}))
    check_sum(adding, [client for client in TEN if client != 2])
    assert why in blamed["client 2"]


def test_a_wrong_share_of_a_mask_key_is_noticed() -> None:
    adding = Adding(TEN, leaving={7: "mask"})

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        made = adding._answering(client, message, answer)
        if client == 2 and step_of(message) == "reveal":
            shares = json.loads(made.content[SECURE]["content"])
            made.content[SECURE]["content"] = json.dumps(shares | {"7": "00" * 32 + "07"})
        return made

    adding.grid.answering = answering
    with pytest.raises(ComponentError, match=r"the sum does not show which client.*of client 7 are wrong"):
        adding.mean()


def test_files_of_keys_are_checked_with_what_to_do(tmp_path: Path) -> None:
    roster = write_roster(tmp_path, range(3))
    (tmp_path / "broken").write_text("0 ssh-nothing AAAA\n")
    wrong = {
        "must contain both 'secure-key' and 'secure-roster', or neither": {"secure-key": roster[0]["secure-key"]},
        "must be an OpenSSH private key without a password": {**roster[0], "secure-key": str(tmp_path / "none")},
        "a client's id and its public key": {**roster[0], "secure-roster": str(tmp_path / "broken")},
        "must contain the public key of secure-key for client 0": {**roster[0], "secure-key": roster[1]["secure-key"]},
    }
    for why, config in wrong.items():
        adding = Adding(range(3), roster={0: config})
        SecureSum(adding.registry, range(3))
        assert why in adding.refused[0]


def test_the_keys_that_the_template_makes_are_a_roster(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(APP / "make_keys.py"), str(tmp_path / "keys"), "3"], check=True)
    files = {"secure-roster": str(tmp_path / "keys" / "roster.txt")}
    roster = {client: {**files, "secure-key": str(tmp_path / "keys" / f"node{client}")} for client in range(3)}
    adding = Adding(range(3), roster=roster)
    check_sum(adding, [0, 1, 2])
    assert all(keys.signature for keys in SecureSum(adding.registry, range(3)).keys.values())


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(data=st.data(), step=st.sampled_from(["keys", "shares", "sign", "reveal"]))
def test_whatever_a_client_replies_the_sum_is_right_or_lost(data: st.DataObject, step: str) -> None:
    """A wrong share may spoil the sum, which the server notices; no reply ends the run with another error."""
    adding = Adding(range(4), leaving={3: "mask"}, roster=files_of_four())

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = adding._answering(client, message, answer)
        if client != 1 or reply is None or step_of(message) != step or reply.has_error():
            return reply
        return data.draw(changed(reply)) if data.draw(st.booleans()) else data.draw(rewritten(reply))

    adding.grid.answering = answering
    try:
        mean, survivors = adding.mean()
    except (IncompleteError, ComponentError):
        return
    assert mean.tobytes() == expected(adding, survivors).tobytes()


@st.composite
def rewritten(draw: st.DrawFn, reply: Message) -> Message:
    """Draw a reply with another JSON value somewhere."""
    inside = json.loads(reply.content[SECURE]["content"])
    key = draw(st.sampled_from(sorted(inside)))
    texts = st.text(alphabet="0123456789abcdef", max_size=200) | st.text(max_size=5)
    value = draw(st.none() | st.integers() | texts | st.lists(texts, max_size=2) | st.just("00" * len(inside[key])))
    inside = {**inside, key: value} if draw(st.booleans()) else draw(st.sampled_from([value, [inside], {}]))
    reply.content[SECURE]["content"] = json.dumps(inside)
    return reply


@cache
def files_of_four() -> dict[int, dict[str, str]]:
    return write_roster(Path(tempfile.mkdtemp()), range(4))
