# %% [markdown]
# ## A worked example
#
# How far behind is a topic? This program writes to a topic while it is offloaded, queries it in the bucket with Spark,
# and draws the result. The tests run every cell below on a real ZooKeeper, S3 server and daemon; the output and the
# picture come from such a run. `make notebook` makes this section from [notebook.py](notebook.py). Editors with cells
# (Jupyter, VS Code) open that file directly.
#
# It needs `pip install 'offloaderd[spark]' matplotlib` and a daemon: its address in `OFFLOADCTL_ADDRESS`, its
# settings in the environment (`OFFLOADERD__OBJECTS__BUCKET` and so on) or in a file for the option `config`.

# %%
import asyncio
import json
import math
import os
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from offloaderd.client import DaemonClient
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.format.pulsar.broker_entry import encode_head
from offloaderd.spark.session import spark_session
from offloaderd.spark.source import register

ADDRESS = os.environ["OFFLOADCTL_ADDRESS"]
PICTURE = Path(os.environ.get("PICTURE", "lag.svg"))
TOPIC = TopicName.parse("public/default/orders")
SECONDS = 10

# %% [markdown]
# ### Something to look at
#
# In a cluster producers write entries, and brokers put their time before each entry (PIP-70). This program does both,
# into the daemon's own ledger store: ten seconds of orders, at a rate that rises and falls. A segment ends after two
# seconds.


# %%
async def orders(clock: SystemClock):
    """Yield what arrives in each twentieth of a second."""
    begin, number = clock.monotonic(), 0
    while (passed := clock.monotonic() - begin) < SECONDS:
        due = round(300 * passed + 500 * (1 - math.cos(passed)))
        head = encode_head(broker_timestamp=clock.wall_ms())
        if due > number:
            yield [head + json.dumps({"order": one, "items": one % 7}).encode() for one in range(number, due)]
        number = due
        await clock.sleep(0.05)


async def write() -> None:
    """Offload the topic from its first entry on, and write to it; then wait until all is offloaded."""
    async with DaemonClient(ADDRESS) as daemon:
        await daemon.enable(TOPIC, segment_age_max_s=2)
        await daemon.append(TOPIC, orders(SystemClock()), lambda answer: None)
        async for _ in daemon.offload(TOPIC, wait=True, timeout_s=60):
            pass


asyncio.run(write())

# %% [markdown]
# ### The topic as a table
#
# Spark reads segments from the bucket; no entry goes through the daemon. The broker's time is a column,
# and one query over the whole topic counts the entries by it.

# %%
with spark_session("notebook", options={"spark.sql.session.timeZone": "UTC", "spark.ui.enabled": "false"}) as spark:
    register(spark)
    columns = "ledger_id BIGINT, entry_id BIGINT, broker_timestamp TIMESTAMP"
    spark.read.format("offload").schema(columns).load(str(TOPIC)).createOrReplaceTempView("entries")
    batches = spark.sql("""
        SELECT broker_timestamp AS at, ledger_id, min(entry_id) AS entry_id, count(*) AS entries
        FROM entries GROUP BY 1, 2 ORDER BY 2, 3
    """).toPandas()
rate = 60 * batches.resample("1s", on="at")["entries"].sum()
print(f"{batches['entries'].sum()} entries, {rate.median():.0f} a minute")

# %% [markdown]
# ### When was each entry safe?
#
# `offloadctl segments -o json` says when each segment was committed: from then on its entries are verified and in the
# bucket. The lag of an entry is the time from the broker's time to the commit.

# %%
listed = subprocess.run(["offloadctl", "segments", str(TOPIC), "-o", "json"], capture_output=True, check=True).stdout
segments = pd.DataFrame([one for one in json.loads(listed)["segments"] if one["offloaded_ms"]])


def number(ledger_id, entry_id):
    """Return one number for a position, in the order of positions."""
    return ledger_id * 2**32 + entry_id


begins = segments["begin"].str.split(":", expand=True).astype("int64")
segments["begin"] = number(begins[0], begins[1])
batches["position"] = number(batches["ledger_id"], batches["entry_id"])
lag = pd.merge_asof(batches, segments[["begin", "offloaded_ms"]], left_on="position", right_on="begin")
lag["seconds"] = (pd.to_datetime(lag["offloaded_ms"], unit="ms") - lag["at"]).dt.total_seconds()
median, worst = lag["seconds"].median(), lag["seconds"].max()
print(f"{len(segments)} segments; an entry was safe after {median:.1f} s, the slowest after {worst:.1f} s")

# %% [markdown]
# ### The picture
#
# The curve of the lag looks like the teeth of a saw: the first entry of a segment waits longest, for the two seconds
# until the segment ends and then for its upload.

# %%
figure, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 5), layout="constrained")
begin = rate.index[0]
above.step((rate.index - begin).total_seconds(), rate, where="post", color="tab:blue", gid="rate")
above.set(ylabel="entries per minute", ylim=0, title=f"{TOPIC.local}: what came, and how long until it was safe")
below.plot((lag["at"] - begin).dt.total_seconds(), lag["seconds"], color="tab:red", gid="lag")
below.set(xlabel="seconds", ylabel="lag in seconds", ylim=0)
figure.savefig(PICTURE)
