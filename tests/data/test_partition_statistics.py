"""Statistics of partitions."""

import json

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition, statistics
from fedreach.data.partition import iid


def test_entropy_divergence_and_effective_classes_of_a_known_mix():
    # Clients hold classes (0,0,1,1), (2,2) and nothing; all together p = (1/3, 1/3, 1/3).
    p = Partition.from_owner([0, 0, 0, 0, 1, 1], 3, "natural")
    s = statistics(p, [0, 0, 1, 1, 2, 2], 4)
    assert s.sizes.tolist() == [4, 2, 0]
    np.testing.assert_allclose(s.entropy_nats, [np.log(2), 0, np.nan])
    np.testing.assert_allclose(s.divergence_nats, [np.log(1.5), np.log(3), np.nan])
    np.testing.assert_allclose(s.effective_classes, [2, 1, np.nan])
    np.testing.assert_allclose(s.earth_movers_distance, [1 / 6 + 1 / 6 + 1 / 3, 1 / 3 + 1 / 3 + 2 / 3, np.nan])


def test_divergence_agrees_with_the_golden_value():
    # algorithms.md 5.2: KL((.5,.3,.2) || (.2,.3,.5)) = .2748872196, with the whole as the second mix:
    # 10 samples of client 0 and 90 of client 1 chosen so that all 100 have the mix (.2,.3,.5).
    labels = np.repeat([0, 1, 2, 0, 1, 2], [5, 3, 2, 15, 27, 48])
    s = statistics(Partition.from_owner(np.repeat([0, 1], [10, 90]), 2, "natural"), labels, 3)
    assert s.divergence_nats[0] == pytest.approx(0.2748872196, abs=1e-10)


def test_a_client_that_holds_all_diverges_by_nothing():
    s = statistics(Partition.from_owner([0] * 30, 1, "natural"), np.arange(30) % 7, 9)
    assert s.divergence_nats.tolist() == s.earth_movers_distance.tolist() == [0]
    assert s.effective_classes[0] == pytest.approx(np.exp(-sum(q * np.log(q) for q in [5 / 30] * 2 + [4 / 30] * 5)))


def test_the_summary_is_plain_json_and_leaves_empty_clients_out_of_mixes():
    p = Partition.from_owner([0, 0, 0, 2], 3, "natural")
    summary = statistics(p, [0, 1, 0, 1], 2).summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert (summary["num_clients"], summary["num_samples"], summary["num_empty"]) == (3, 4, 1)
    assert summary["size"] == {"min": 0, "median": 1, "mean": 4 / 3, "max": 3}
    assert summary["effective_classes"]["min"] == 1


def test_renaming_classes_changes_nothing():
    labels = generator(0, "labels").integers(0, 5, 200)
    p = iid(labels, 8, generator(0, "partition"))
    renamed = statistics(p, np.array([3, 0, 4, 2, 1])[labels], 5)
    np.testing.assert_allclose(renamed.entropy_nats, statistics(p, labels, 5).entropy_nats)
    np.testing.assert_allclose(renamed.divergence_nats, statistics(p, labels, 5).divergence_nats, atol=1e-12)


def test_labels_of_another_data_set_are_refused():
    with pytest.raises(DataError, match="must be 3 classes below 2"):
        statistics(Partition.from_owner([0, 1, 1], 2, "natural"), [0, 1], 2)
