"""A capture's own nodes back into metadata that lack them: policies, selections, quotas, pauses, revocations.

Rules: what is there and was not made by a rebuild stays. A topic without a map gets its policy only if nothing is
offloaded by it: one disabled by name, which a selection would enable, and that of a partitioned topic, whose partitions
follow it and would end without it. A policy that was not enabled is not enabled here, and a topic that a rebuild left
disabled stays disabled. Floors are not written: a map that was rebuilt begins where the bucket does.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from offloaderd.capture.records import Capture, Kind, node_of
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import grant
from offloaderd.policy import quotas, records, store
from offloaderd.policy.records import TopicPolicy
from offloaderd.upkeep.grants.records import revoke

REBUILT = (TopicPolicy(enabled=False), TopicPolicy(enabled=True))
"""What a rebuild writes for each topic."""
_LEVELS: Mapping[str, Callable[..., object]] = {
    paths.POLICIES: records.decode_level,
    paths.SELECTIONS: records.decode_selection,
    paths.QUOTAS: quotas.decode,
}


@dataclass(slots=True)
class Restored:
    """Nodes by what became of them: written (or that would be), and left as they are, each with the reason."""

    written: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


async def restore(
    metadata: MetadataStore,
    capture: Capture,
    clock: Clock,
    *,
    write: bool,
    topics: Collection[TopicName] = (),
    blocked: Collection[TopicName] = (),
) -> Restored:
    """Write the nodes of a capture, or those of some topics alone; without `write` only say which.

    `blocked` are topics that a rebuild has still to write. May be repeated. Raises Transient, Denied.
    """
    done = Restored()
    policies: dict[TopicName, TopicPolicy] = {}
    for path, value in capture.of(Kind.NODE):
        try:
            content, root = node_of(value), f"/{path.split('/')[1]}"
            if topics and (root != paths.TOPICS or paths.parse_topic(path) not in topics):
                continue
            if root == paths.SELECTIONS and blocked:
                done.left[path] = "it may select topics that are blocked: offloadctl metadata import, once none is"
            elif root in _LEVELS:
                await _level(metadata, clock, done, path, content, write=write)
            elif path.endswith("/policy"):
                policies[paths.parse_topic(path)] = records.decode_policy(content, path=path)
            elif "/grants/" in path:
                await _revocation(metadata, done, path, content, write=write)
            else:
                done.left[path] = "it follows from what is in the bucket"
        except (CorruptData, InvalidInput, IndexError) as error:
            done.left[path] = str(error)
    await _policies(metadata, clock, done, policies, write=write, blocked=blocked)
    return done


async def _level(
    metadata: MetadataStore, clock: Clock, done: Restored, path: str, content: bytes, *, write: bool
) -> None:
    """Write a node above the topics where there is none."""
    root = f"/{path.split('/')[1]}"
    decode = _LEVELS[root]
    decode(content, path=path)
    current = await nodes.node(metadata, path)
    if current is not None:
        done.left[path] = "it is there already" if current.value == content else "another one is there"
        return
    if write:
        await store.put_counted(metadata, clock, root, path, content, decode, f"{path} of a capture")
    done.written.append(path)


async def _revocation(metadata: MetadataStore, done: Restored, path: str, content: bytes, *, write: bool) -> None:
    """Forbid the deletion of a ledger again, where its topic has a map."""
    topic, captured = paths.parse_topic(path), grant.decode(content, path=path)
    current = await nodes.record(metadata, path, grant.decode)
    if current is not None and current.revoked_ms:
        done.left[path] = "it is revoked already"
    elif await nodes.node(metadata, paths.policy(topic)) is None:
        done.left[path] = f"{topic} is not in these metadata"
    else:
        if write:
            try:
                reason, since_ms = captured.revoked_reason, captured.revoked_ms
                await revoke(
                    metadata, topic, captured.ledger_id, reason=reason, now_ms=since_ms, damaged=captured.damaged
                )
            except Conflict as error:
                done.left[path] = str(error)
                return
        done.written.append(path)


async def _policies(
    metadata: MetadataStore,
    clock: Clock,
    done: Restored,
    captured: Mapping[TopicName, TopicPolicy],
    *,
    write: bool,
    blocked: Collection[TopicName],
) -> None:
    """Give topics their policies where they have what a rebuild wrote, or have none and offload nothing by it."""

    def decide(topic: TopicName, current: TopicPolicy | CorruptData | None) -> TopicPolicy | None:
        if current is None:
            wanted = captured[topic]
            by_name = wanted.partitioned or not wanted.enabled
            return wanted if by_name and not wanted.selected_by and topic not in blocked else None
        if not isinstance(current, TopicPolicy) or current not in REBUILT:
            return None
        wanted = captured[topic]
        return wanted if current.enabled or not wanted.enabled else records.disabled(wanted)

    there = await store.read(metadata, sorted(captured))
    chosen = []
    for topic in sorted(captured):
        path, current = paths.policy(topic), there.get(topic)
        if current is None and decide(topic, None) is None:
            done.left[path] = f"{topic} is not in these metadata"
        elif isinstance(current, CorruptData):
            done.left[path] = str(current)
        elif current is not None and current not in REBUILT:
            done.left[path] = "another one is there"
        elif decide(topic, current) == current:
            done.left[path] = "it is there already"
        else:
            chosen.append(topic)
            done.written.append(path)
    if write and chosen:
        await store.write(metadata, clock, chosen, decide, known=frozenset(chosen))
