"""ControlService: what is changed while a daemon runs: settings, log levels, topics that stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from offloaderd.metadata.records.policy import Paused
from offloaderd.model import TopicName
from offloaderd.offload import pausing
from offloaderd.rpc.convert import filled
from offloaderd.rpc.v1 import control_pb2, control_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.clock import Clock
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.rpc.v1.control_pb2_grpc import _ServicerContext as Context


class Change(Protocol):
    """One setting that changed; texts as in the settings file, secrets masked."""

    @property
    def key(self) -> str:
        """`section.setting`."""
        ...

    @property
    def old(self) -> str:
        """What held."""
        ...

    @property
    def new(self) -> str:
        """What is written now."""
        ...

    @property
    def live(self) -> bool:
        """Whether it holds without a restart."""
        ...


class Reloaded(Protocol):
    """What a reload found."""

    @property
    def changes(self) -> Sequence[Change]:
        """Every setting that differs."""
        ...


class Reloader(Protocol):
    """Who reads the settings again."""

    def reload(self, *, by: str, dry_run: bool) -> Reloaded:
        """Follow the settings. Raises InvalidConfig with every mistake, Conflict."""
        ...


class ModuleLevel(Protocol):
    """What one module logs."""

    @property
    def module(self) -> str:
        """Its name; empty: all others."""
        ...

    @property
    def level(self) -> str:
        """The least that is written."""
        ...

    @property
    def left_s(self) -> float | None:
        """For how long; None: for good."""
        ...


class Levels(Protocol):
    """The levels of the log."""

    def shown(self) -> Sequence[ModuleLevel]:
        """Return all."""
        ...

    def raised(self, module: str, level: str, seconds: float) -> ModuleLevel:
        """Set one for a while. Raises InvalidInput."""
        ...

    def fallen(self, module: str) -> None:
        """Take that back. Raises InvalidInput."""
        ...


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Answers for the daemon `daemon_id`."""

    def __init__(
        self, reloader: Reloader, levels: Levels, metadata: MetadataStore, clock: Clock, *, daemon_id: str
    ) -> None:
        self._reloader = reloader
        self._levels = levels
        self._metadata = metadata
        self._clock = clock
        self._daemon_id = daemon_id

    async def Reload(  # noqa: N802 - named by the proto
        self, request: control_pb2.ReloadRequest, context: Context
    ) -> control_pb2.ReloadResponse:
        """Follow the settings as they are written now. Raises InvalidConfig, Conflict."""
        found = self._reloader.reload(by=context.peer(), dry_run=request.dry_run)
        return control_pb2.ReloadResponse(
            changes=[filled(control_pb2.SettingChange, one, needs_restart=not one.live) for one in found.changes],
            dry_run=request.dry_run,
            daemon_id=self._daemon_id,
        )

    async def ListLogLevels(  # noqa: N802 - named by the proto
        self, request: control_pb2.ListLogLevelsRequest, context: Context
    ) -> control_pb2.LogLevels:
        """Return the level of all, then of each module that has another."""
        return self._shown()

    async def SetLogLevel(  # noqa: N802 - named by the proto
        self, request: control_pb2.SetLogLevelRequest, context: Context
    ) -> control_pb2.LogLevels:
        """Set a module's level for a while, or take that back. Raises InvalidInput."""
        if request.level:
            self._levels.raised(request.module, request.level, request.seconds)
        else:
            self._levels.fallen(request.module)
        return self._shown()

    async def PauseTopic(  # noqa: N802 - named by the proto
        self, request: control_pb2.PauseTopicRequest, context: Context
    ) -> control_pb2.PauseTopicResponse:
        """Have a topic stand still, or go on. Raises NotFound when it is not enabled."""
        topic = TopicName.parse(request.topic)
        paused = None if request.undo else Paused(self._clock.wall_ms(), context.peer())
        found = await pausing.say(self._metadata, self._clock, topic, paused, dry_run=request.dry_run)
        return control_pb2.PauseTopicResponse(
            topics=[
                control_pb2.PausedTopic(
                    topic=str(one.topic),
                    paused_ms=one.paused.since_ms if one.paused is not None else 0,
                    paused_by=one.paused.by if one.paused is not None else "",
                    changed=one.changed,
                )
                for one in found
            ]
        )

    def _shown(self) -> control_pb2.LogLevels:
        return filled(control_pb2.LogLevels, levels=self._levels.shown())
