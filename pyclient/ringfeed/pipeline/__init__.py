"""Configurations out of Python: each method is a stage, with the settings of that stage.

    import ringfeed.pipeline as rp

    feed = (
        rp.files("/data/*.jsonl.zst")
        .jsonl(fields={"text": "text"})
        .shuffle(100_000)
        .batch(8, fields={"text": "text"})
        .feed("c4", seed=7)
    )
    feed.save("c4.textproto")            # what a person would write; `ringfeed run c4.textproto`
    with feed.start() as loader:         # or beside this process
        for batch in loader: ...

``stage`` has a function for every kind of stage, ``settings`` a class for every message in their
settings. Both, and the methods of pipelines, are written from the schema (proto/), like their
texts. An argument that is None is not given: the default of the schema holds.
"""

from . import _methods, settings, stage
from ._build import Feed, Output, Pipeline
from ._fields import InvalidArgument
from ._load import load
from ._methods import *  # noqa: F401, F403  # what begins a pipeline, as the schema has it
from ._run import Loader, RefusedConfiguration, Report
from .settings import BatchField, ConsumerGroup, SampleField

__all__ = [
    "BatchField",
    "ConsumerGroup",
    "Feed",
    "InvalidArgument",
    "Loader",
    "Output",
    "Pipeline",
    "RefusedConfiguration",
    "Report",
    "SampleField",
    "load",
    "settings",
    "stage",
]
__all__ += _methods.__all__
