"""ControlService: changes of a running daemon: settings, log levels, paused topics."""

from collections.abc import Callable, Sequence

from offloaderd.api.context import Context
from offloaderd.core.clock import Clock
from offloaderd.core.model import TopicName
from offloaderd.format.parsing import filled
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import updates
from offloaderd.policy.records import Paused
from offloaderd.protocol.v1 import control_pb2, control_pb2_grpc


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Answers for the daemon `daemon_id`."""

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        *,
        daemon_id: str,
        reload: Callable[[str, bool], Sequence[object]],
        shown: Callable[[], Sequence[object]],
        raised: Callable[[str, str, float], object],
        fallen: Callable[[str], None],
    ) -> None:
        """`reload` takes the caller and whether it is a dry run, and returns the changes (`config.change.Change`).

        The others are methods of `LogLevels`.
        """
        self._metadata = metadata
        self._clock = clock
        self._daemon_id = daemon_id
        self._reload = reload
        self._shown, self._raised, self._fallen = shown, raised, fallen

    async def Reload(self, request: control_pb2.ReloadRequest, context: Context) -> control_pb2.ReloadResponse:
        """Apply the settings as they are written now. Raises InvalidConfig, Conflict."""
        changes = self._reload(context.peer(), request.dry_run)
        return filled(control_pb2.ReloadResponse, request, changes=changes, daemon_id=self._daemon_id)

    async def ListLogLevels(self, request: control_pb2.ListLogLevelsRequest, context: Context) -> control_pb2.LogLevels:
        """Return the level of the daemon, then of each module with another one."""
        return self._levels()

    async def SetLogLevel(self, request: control_pb2.SetLogLevelRequest, context: Context) -> control_pb2.LogLevels:
        """Set a module's level for a time, or reset it. Raises InvalidInput."""
        if request.level:
            self._raised(request.module, request.level, request.seconds)
        else:
            self._fallen(request.module)
        return self._levels()

    async def PauseTopic(
        self, request: control_pb2.PauseTopicRequest, context: Context
    ) -> control_pb2.PauseTopicResponse:
        """Pause a topic, or resume it. Raises NotFound when it is not enabled."""
        topic = TopicName.parse(request.topic)
        paused = None if request.undo else Paused(self._clock.wall_ms(), context.peer())
        found = await updates.set_paused(self._metadata, self._clock, topic, paused, dry_run=request.dry_run)
        return control_pb2.PauseTopicResponse(
            topics=[
                filled(
                    control_pb2.PausedTopic,
                    one,
                    paused_ms=one.paused.since_ms if one.paused is not None else 0,
                    paused_by=one.paused.by if one.paused is not None else "",
                )
                for one in found
            ]
        )

    def _levels(self) -> control_pb2.LogLevels:
        return filled(control_pb2.LogLevels, levels=self._shown())
