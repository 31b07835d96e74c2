"""A client that is deployed: a fitted rule beside a run's model, here or as one file that needs numpy alone."""

from fedreach.serving.adapter import Adapter as Adapter
from fedreach.serving.saved import load as load
