"""The program that runs a stage in Python: ``python -m ringfeed.worker``, started by `ringfeed`."""
