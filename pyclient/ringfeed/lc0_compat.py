"""The data loader of lczero-training, on top of a feed: the public name of ``ringfeed.lc0.compat``.

python -m ringfeed.lc0_compat --help     # runs that project's programs on it
"""

import sys

from .lc0.compat import DataLoader, TensorBase, _main, install, make_dataloader

__all__ = ["DataLoader", "TensorBase", "install", "make_dataloader"]

for _public in (DataLoader, TensorBase, install, make_dataloader):
    _public.__module__ = "ringfeed.lc0_compat"  # the module that messages and pickles name

if __name__ == "__main__":
    _main(sys.argv[1:])
