"""A feed of translation batches for fairseq's trainer: epochs, samples, states, weights.

    feed = ringfeed.attach("mt", group="run-a", rank=rank, world=world, view="private")
    epochs = EpochIterator(feed)
    while epochs.next_epoch_idx <= max_epoch:
        updates = GroupedIterator(epochs.next_epoch_itr(), update_freq)
        for samples in updates:              # fairseq's samples: dictionaries of torch tensors
            trainer.train_step(samples)
    epochs.state_dict()                      # as fairseq saves it, and what it forgets

The batches of such a feed come from a ``bitext_collator``, which follows the plans of an
``epoch_planner``. Each rank is a member of a ranked group with as many members as the planner's
``world_size``. Samples need PyTorch; states, weights and questions to the planner do not.
"""

from .iterators import BatchIterator, EpochIterator, GroupedIterator
from .progress import ProgressBar, progress_bar
from .samples import Sample, sample
from .state import PlannerState, load_state, planner_state, set_weights

__all__ = [
    "BatchIterator",
    "EpochIterator",
    "GroupedIterator",
    "PlannerState",
    "ProgressBar",
    "Sample",
    "load_state",
    "planner_state",
    "progress_bar",
    "sample",
    "set_weights",
]
