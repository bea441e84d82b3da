"""The composition root: opens what the daemon needs in order, runs its loops, drains, closes in reverse.

Life cycle: starting (waiting for ZooKeeper and the bucket, with the reason on /readyz), serving, draining. The first
SIGTERM or SIGINT drains under a deadline, the second ends everything at once. A loop that crashes ends the daemon with
exit code 1. Configuration that cannot work (no such bucket, wrong credentials) ends the start with code 2.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import structlog

from offloaderd import __version__
from offloaderd.api.admin import DaemonSnapshot
from offloaderd.api.interceptor import ErrorInterceptor
from offloaderd.api.server import RpcServer, Services
from offloaderd.core import native
from offloaderd.core.aio import Group, finished, race
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import BucketMissing, Denied, InvalidConfig, OffloaderError, Transient, first_of
from offloaderd.core.health import Health
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics, watch_loop
from offloaderd.core.retry import Backoff
from offloaderd.daemon.components import Components, reading_bytes
from offloaderd.daemon.guard import Guard
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.process import attended
from offloaderd.daemon.reload import Reloader
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.rules import is_metadata_open
from offloaderd.daemon.settings.share import Process
from offloaderd.daemon.siblings import log_level_route, pass_level_on, pass_reload_on
from offloaderd.daemon.status_page.site import StatusSite
from offloaderd.daemon.stores import ANSWERS_S, Ledgers, Prober, metadata_store, open_ledgers
from offloaderd.daemon.topic_context import opened_context, topic_context
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.registration import Registration
from offloaderd.metadata.port import MetadataStore, SessionState
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.buckets import BucketStore
from offloaderd.objects.opening import bucket_store, check_places
from offloaderd.objects.port import SegmentStore
from offloaderd.read.disk.sweep import keep_swept, known_topics
from offloaderd.segment.upload import UploadContext
from offloaderd.topic.buffer import BufferPool

T = TypeVar("T")
log = structlog.get_logger(__name__)


TELL_S = 1.0
"""Longest wait until ZooKeeper has recorded that this daemon drains; without it the others notice later."""

_OTHERS_GO_ON = "topics that store in its places wait until it answers; the others go on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of a serving daemon."""

    grpc: str
    http: str


async def run(
    settings: Settings,
    *,
    on_ready: Callable[[Addresses], None] | None = None,
    reread: Callable[[], Settings] | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    process: Process | None = None,
    kind: "type[Daemon] | None" = None,
) -> int:
    """Run a daemon until a signal stops it; returns the exit code (0 after a complete drain, else 1).

    Raises InvalidConfig for settings that can never work. `on_ready` is called when the daemon accepts calls, `reread`
    to read the settings again; it raises InvalidConfig. `environ` may name the socket of systemd. `process` is which of
    several processes of the host this one is, `kind` the class of a daemon of another kind.
    """
    daemon = (kind or Daemon)(settings, on_ready, reread=reread, environ=environ, process=process)
    with stop_signals(daemon):
        try:
            await daemon.run()
        except asyncio.CancelledError:
            if not daemon.stop_forced:
                raise
            daemon.exit_code = 1
            log.warning("daemon.stop_forced", hint="open segments are taken up at the next start")
        except BaseExceptionGroup as errors:
            crash = first_of(errors)
            if isinstance(crash, OffloaderError) or not isinstance(crash, Exception):
                raise crash from errors
            daemon.exit_code = 1
            log.exception("daemon.crashed", error=f"{type(crash).__name__}: {crash}", exc_info=crash)
    return daemon.exit_code


@contextmanager
def stop_signals(daemon: "Daemon") -> Iterator[None]:
    """First SIGTERM or SIGINT: drain. Second: cancel. SIGHUP: read the settings again.

    One of several processes may get SIGTERM from its parent and from whoever stops all of a service: only SIGINT counts
    as a second one.
    """
    loop, main = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal(name: str) -> None:
        if not daemon.stopping.is_set():
            log.info("daemon.stop_requested", signal=name)
            daemon.stop(f"received {name}")
        elif main is not None and (daemon.process is None or name == signal.SIGINT.name):
            daemon.stop_forced = True
            main.cancel()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, on_signal, number.name)
    loop.add_signal_handler(signal.SIGHUP, daemon.reloader.on_signal)
    try:
        yield
    finally:
        for number in (*signals, signal.SIGHUP):
            loop.remove_signal_handler(number)


class Daemon:
    """The daemon of one process."""

    def __init__(
        self,
        settings: Settings,
        on_ready: Callable[[Addresses], None] | None = None,
        *,
        clock: Clock | None = None,
        reread: Callable[[], Settings] | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        process: Process | None = None,
    ) -> None:
        self._environ = environ
        self.process = process
        self._on_ready = on_ready
        self._clock: Clock = clock or SystemClock()
        self._started_ms = self._clock.wall_ms()
        self._pool = BufferPool(settings.memory.buffer_bytes)
        self._uploads = ByteBudget(settings.memory.upload_bytes)
        self.metrics = Metrics()
        self.reloader = Reloader(settings, reread, self._clock, self.metrics)
        self._levels = LogLevels(settings.log, self._clock, self.metrics)
        if process is not None:
            self.reloader.pass_on, self._levels.pass_on = pass_reload_on, partial(pass_level_on, process)
        self.health = Health(self._clock.wall_ms)
        self.stopping = asyncio.Event()
        self.stop_forced = False
        self.exit_code = 0
        self._why_stopping = ""
        self._site: StatusSite | None = None
        self.reading_bytes: Callable[[], int] = lambda: 0
        """Returns the memory of reads: cached and unpacked bytes."""

    @property
    def _settings(self) -> Settings:
        return self.reloader.settings

    def stop(self, why: str) -> None:
        """Begin to drain."""
        self._why_stopping = why
        self.stopping.set()

    def snapshot(self) -> DaemonSnapshot:
        """Describe the daemon for `offloadctl status`."""
        view = self.health.view
        return DaemonSnapshot(
            daemon_id=self._settings.daemon.id,
            version=__version__,
            state=view.state.value,
            started_ms=self._started_ms,
            dependencies=view.dependencies,
            memory_used_bytes=self._pool.used_bytes + self._uploads.used + self.reading_bytes(),
            memory_budget_bytes=self._settings.memory.budget_bytes,
        )

    async def run(self) -> None:
        """Open, serve, drain, close. Raises InvalidConfig, or what crashed."""
        settings = self._settings
        self.metrics.set_build(__version__, "")
        self.metrics.metadata_world_writable.set(not settings.daemon.read_only and is_metadata_open(settings))
        self.metrics.buffer_limit_bytes.set(settings.memory.buffer_bytes)
        self.metrics.memory_budget_bytes.set(self.snapshot().memory_budget_bytes)
        self.health.listen(self.metrics.show_health)
        async with AsyncExitStack() as stack:
            guard = Guard(settings, self._clock, self.metrics)
            if not settings.daemon.read_only:
                self._site = guard.site(self.health, self.process)
            http = await stack.enter_async_context(self._http(guard))
            await stack.enter_async_context(attended(self.health, self._clock, self._environ))
            await self.open_and_serve(stack, http, guard)
        log.info("daemon.stopped", exit_code=self.exit_code)

    async def open_and_serve(self, stack: AsyncExitStack, http: HttpServer, guard: Guard) -> None:
        """Open the stores, serve, drain. Raises InvalidConfig, or what crashed."""
        metadata = await self._open_metadata(stack)
        objects = await self._open_objects(stack)
        ledgers = await self._open_ledgers(stack)
        if metadata is not None and objects is not None and ledgers is not None:
            await self._serve(stack, http, guard, metadata, objects, ledgers)

    def _http(self, guard: Guard) -> HttpServer:
        """Return the HTTP server; one of several processes has its own on a socket of its parent."""
        settings, process = self._settings.http, self.process
        if process is None:
            return HttpServer(settings, self.metrics, self.health, guard.certificates, self._site)
        routes = [log_level_route(self._levels)]
        return HttpServer(settings, self.metrics, self.health, site=self._site, socket=process.socket, routes=routes)

    async def _open_metadata(self, stack: AsyncExitStack) -> MetadataStore | None:
        settings = self._settings

        async def connect() -> MetadataStore:
            return await stack.enter_async_context(metadata_store(settings, self._session_changed))

        return await self._until_there("metadata", f"ZooKeeper at {settings.metadata.servers}", connect)

    async def _open_objects(self, stack: AsyncExitStack) -> SegmentStore | None:
        settings = self._settings
        store = bucket_store(settings.objects, self._clock, self.metrics)
        await stack.enter_async_context(store)

        async def probe() -> SegmentStore:
            try:
                await check_places(settings.objects, store)
            except Transient as error:
                if not await self._further_services_answer(store):
                    raise
                log.error("service.unreachable", service="objects", error=str(error), hint=_OTHERS_GO_ON)  # noqa: TRY400 - no bug of ours
            else:
                await self._further_services_answer(store)
            return store

        return await self._until_there("objects", str(store), probe)

    async def _further_services_answer(self, store: BucketStore) -> bool:
        """Log the further services that do not answer; return whether any of them does."""
        answered = False
        for service in self._settings.objects.services.values():
            try:
                async with asyncio.timeout(ANSWERS_S):
                    await check_places(service, store)
                answered = True
            except (OffloaderError, TimeoutError) as error:
                told = str(error) or f"no answer within {ANSWERS_S:g} s"
                log.error("service.unreachable", service=service.section, error=told, hint=_OTHERS_GO_ON)  # noqa: TRY400 - no bug of ours
        return answered

    async def _open_ledgers(self, stack: AsyncExitStack) -> Ledgers | None:
        settings = self._settings
        if settings.ledgers.kind == "none":
            return Ledgers()

        connect = partial(open_ledgers, stack, settings, clock=self._clock, metrics=self.metrics)
        kept = settings.ledgers.directory
        where = kept if settings.ledgers.kind == "embedded" else f"the cluster at {settings.cluster_servers}"
        return await self._until_there("ledgers", where, connect)

    async def _until_there(self, name: str, what: str, connect: Callable[[], Awaitable[T]]) -> T | None:
        """Connect to a dependency, again until it answers; None when stopped meanwhile. Raises InvalidConfig."""
        backoff = Backoff(self._clock)
        while not self.stopping.is_set():
            try:
                found = await connect()
            except (Denied, BucketMissing) as error:
                raise InvalidConfig(error.message, hint=error.hint) from error
            except Transient as error:
                self.health.starting(f"waiting for {what}")
                self.health.down(name, str(error))
                log.warning("dependency.awaited", dependency=name, error=str(error))
                await race(self.stopping.wait(), self._clock.sleep(backoff.pause_s(error)))
            else:
                self.health.up(name)
                return found
        return None

    async def _serve(
        self,
        stack: AsyncExitStack,
        http: HttpServer,
        guard: Guard,
        metadata: MetadataStore,
        objects: SegmentStore,
        ledgers: Ledgers,
    ) -> None:
        settings = self._settings
        pool, uploads = self._pool, self._uploads
        context = topic_context(
            settings, metadata, objects, ledgers, pool, uploads, clock=self._clock, metrics=self.metrics
        )
        context = await stack.enter_async_context(opened_context(settings, context, ledgers))
        components = Components(
            settings, context, ledgers, guard, self._levels, self.reloader, snapshot=self.snapshot, clock=self._clock
        )
        self.reading_bytes = partial(reading_bytes, components.reader, components.reads)
        if components.disk is not None:
            await stack.enter_async_context(components.disk)
        await stack.enter_async_context(components.reader)
        engine, registration = components.engine, components.registration
        rpc = await self._open_rpc(stack, guard, components.services)
        registration.reached_at(self._reached_at(rpc.port))
        self.reloader.connect(components.prepare)
        node = registration.node
        self.health.starting(f"registering as {node.daemon_id}")
        if not await self._or_stopped(registration.open()):
            return
        further = {one.section: one.own_places[0].bucket for one in settings.objects.services.values()}
        buckets = {"objects": context.places.home.bucket, **further}
        prober = Prober(
            self.health,
            self._clock,
            probed=partial(self._service_probed, registration, context.upload_context, buckets),
            refused=lambda name: engine.store_refuses(buckets[name]),
        )
        collecting = components.gc.keep(lambda: self._settings.gc, lambda: engine.placement.leads("gc"))
        capturing = components.captures.keep(lambda: self._settings.capture, lambda: engine.placement.leads("capture"))
        reporting = components.tables.keep(lambda: engine.placement.leads("tables"))
        async with Group() as group:
            loops = [
                group.create_task(watch_loop(self._clock, self.metrics), name="event-loop lag"),
                group.create_task(prober.run(metadata, objects, ledgers, further), name="dependency probe"),
                group.create_task(registration.run(), name="registration"),
                group.create_task(components.keeper.run(), name="damage"),
                group.create_task(guard.keep(), name="certificates"),
                group.create_task(self._levels.keep(), name="log levels"),
                group.create_task(collecting, name="garbage collection"),
                group.create_task(capturing, name="captures"),
                group.create_task(reporting, name="lag of tables"),
            ]
            if components.disk is not None:
                topics, load = partial(known_topics, metadata), partial(catalog.load, metadata)
                sweeping = keep_swept(components.disk, self._clock, topics, load)
                loops.append(group.create_task(sweeping, name="disk cache sweep"))
            if self._site is not None:
                loops.append(group.create_task(self._site.fill(components.board), name="status page"))
            running = group.create_task(engine.run(node), name="engine")
            await self._announce(rpc, Addresses(grpc=node.address, http=http.address))
            await self.stopping.wait()
            await self._drain(engine, running, rpc, registration)
            for loop in loops:
                loop.cancel()

    async def _open_rpc(self, stack: AsyncExitStack, guard: Guard, services: Services) -> RpcServer:
        """Bind the port of the API. Raises InvalidConfig."""
        errors = ErrorInterceptor(self.metrics, clock=self._clock, gate=guard.gate)
        shared_port = self.process.port if self.process is not None else 0
        server = RpcServer(self._settings.grpc, services, [errors], guard.certificates, shared_port)
        return await stack.enter_async_context(server)

    async def _announce(self, rpc: RpcServer, addresses: Addresses, **more: object) -> None:
        """Report that calls are accepted; `more` goes into the log."""
        self.health.serving()
        await rpc.show(serving=True)
        daemon_id = self._settings.daemon.id
        log.info(
            "daemon.serving",
            grpc=addresses.grpc,
            http=addresses.http,
            daemon_id=daemon_id,
            compiled_loops=native.IN_USE,
            **more,
        )
        if self._on_ready is not None:
            self._on_ready(addresses)

    async def _drain(
        self, engine: Engine, running: asyncio.Task[None], rpc: RpcServer, registration: Registration
    ) -> None:
        """Refuse new work, complete open segments under the deadline, end the calls that still run.

        The other daemons are notified first, so that the next owner of a topic waits for its release.
        """
        deadline_s = self._settings.shutdown.drain_s
        self.health.draining(self._why_stopping)
        await rpc.show(serving=False)
        started = self._clock.monotonic()
        registration.announce(draining=True)
        await race(registration.announced(), self._clock.sleep(TELL_S))
        engine.drain()
        await race(finished(running), self._clock.sleep(deadline_s))
        left = engine.topics()
        if left:
            self.exit_code = 1
            log.error(
                "daemon.drain_incomplete",
                topics=[str(topic) for topic in left],
                deadline_s=deadline_s,
                hint="their open segments are taken up at the next start; nothing that was confirmed is lost",
            )
            running.cancel()
        await rpc.stop(grace_s=1.0)
        log.info("daemon.drained", duration_s=round(self._clock.monotonic() - started, 3))

    def _reached_at(self, port: int) -> str:
        """Return the address for others; one of several processes is reached at its own port of the host."""
        grpc = self._settings.grpc
        if grpc.advertise is None:
            return f"{grpc.host}:{port}"
        return grpc.advertise if self.process is None else f"{grpc.advertise.rpartition(':')[0]}:{port}"

    async def _or_stopped(self, work: Coroutine[Any, Any, object]) -> bool:
        """Do something unless the daemon is stopped first; says whether it was done."""
        await race(work, self.stopping.wait())
        return not self.stopping.is_set()

    def _service_probed(
        self,
        registration: Registration,
        uploads: UploadContext,
        buckets: Mapping[str, str],
        name: str,
        error: OffloaderError | None,
    ) -> None:
        """Note whether a service answers; the daemon's rank for topics goes by its own one."""
        if name == "objects":
            self.metrics.bucket_accessible.set(error is None)
            registration.probed(reached=error is None, patience_s=self._settings.placement.impaired_s)
        uploads.service(buckets[name]).reach.probed(error, self._clock)

    def _session_changed(self, state: SessionState) -> None:
        self.metrics.zk_session_state.set(state)
        if state is SessionState.LOST:
            self.metrics.zk_session_losses.inc()
