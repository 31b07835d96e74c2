"""A cell of a size that the model cannot compute with is refused: no prediction is nan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.errors import DataError
from fedreach.data.preparation import InputColumn, Preparation
from fedreach.data.samples import SampleFormat
from fedreach.deploy.model import Expected, TrainedModel
from fedreach.deploy.predictions import Rows, predictions

COLUMNS = (InputColumn("age", "number", mean=50.0, sd=10.0), InputColumn("ward", "category", categories=("a", "b")))
COLUMNS += (InputColumn("dose", "number", mean=0.0, sd=1e-10),)


class Overflowing:
    """A model of float32, as trained ones are."""

    def logits(self, samples: Any) -> Any:
        with np.errstate(all="ignore"):
            scaled = ((np.asarray(samples, np.float64) - [50, 0, 0]) / [10, 1, 1e-10]).astype(np.float32)
            return np.stack([scaled.sum(axis=1), -scaled.sum(axis=1)], axis=1).astype(np.float64)

    def answers(self, samples: Any) -> Any:
        return self.logits(samples), None, None


@pytest.mark.parametrize("targets", [None, 2])
@pytest.mark.parametrize("new_adapter", [None, lambda: pytest.fail("adapts to a row that is refused")])
def test_a_row_without_a_finite_prediction_is_refused(targets: int | None, new_adapter: Any) -> None:
    expected = SampleFormat("wards", "features", (3,), preparation=Preparation(COLUMNS))
    about = {**expected.to_json(), "name": "wards", "classes": ["no", "yes"], "targets": targets, "outputs": 2}
    about["mixes"] = False
    samples = np.array([[50, 0, 0], [1e38, 1, 1e-10], [40, -1, -3e38]])
    rows = Rows(samples, ("x", "x", "x"), None, ())
    with pytest.raises(DataError, match=r"row 2 is not finite: column 'dose' is -3e\+38"):
        predictions(Overflowing(), rows, about, new_adapter)
    if new_adapter is None:
        done = predictions(Overflowing(), Rows(samples[:2], None, None, ()), about)
        assert np.isfinite(done.outputs).all()


@pytest.mark.parametrize("targets", [None, 2])
def test_a_model_in_python_refuses_it_in_the_same_words(targets: int | None) -> None:
    expected = Expected("wards", "features", (4,), preparation=Preparation(COLUMNS))
    net = nn.Linear(4, 2)
    nn.init.ones_(net.weight)
    model = TrainedModel(net, expected, 0 if targets else 2, None, None, targets)  # type: ignore[arg-type]
    samples = torch.tensor([[50, 0, 0], [40, -1, -3e38]], dtype=torch.float64)
    assert np.isfinite(model.predict(samples[:1])).all()
    for predict in [model.predict] if targets else [model.predict, model.predict_proba]:
        with pytest.raises(DataError, match=r"row 1 is not finite: column 'dose' is -3e\+38, the most unusual cell"):
            predict(samples)
