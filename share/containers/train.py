"""The trainer of compose.yaml and kubernetes.yaml: in the place of yours."""

import ringfeed

with ringfeed.attach("lc0", group="trainer", attach_timeout_s=600) as feed:
    for batch in feed:
        if batch.seq % 100 == 1:
            print(f"batch {batch.seq}: {batch.rows} rows, planes {batch['planes'].shape}")
