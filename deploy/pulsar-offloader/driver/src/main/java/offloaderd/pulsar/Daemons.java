package offloaderd.pulsar;

import com.google.common.util.concurrent.ThreadFactoryBuilder;
import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.SecurityLevel;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.okhttp.OkHttpChannelBuilder;
import io.grpc.stub.AbstractStub;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.BrokerServiceGrpc;
import offloaderd.v1.OffloadServiceGrpc;
import org.apache.pulsar.common.allocator.PulsarByteBufAllocator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Connections to daemons: the one that is configured, and those that it names as owners of topics. They belong to the
 * factory, and outlive every offloader: a namespace's offloader is replaced whenever its policies change, while readers go
 * on. Certificates and keys are looked at for each call: when a file has changed, calls that begin go by a connection
 * made anew, and those that run end on the old one.
 */
final class Daemons implements AutoCloseable {
    static final int BATCH_BYTES = 1 << 20;
    private static final int MESSAGE_BYTES_MAX = 33 << 20;
    static final int WINDOW_BYTES = 512 << 10;
    private static final int WORKERS = Math.max(8, 2 * Runtime.getRuntime().availableProcessors());
    private static final int TOKEN_BYTES_MAX = 16 << 10;
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private static final Logger LOG = LoggerFactory.getLogger(Daemons.class);

    /** Ledgers of one broker that ask their daemons at the same time; a daemon serves 256 calls of a connection. */
    private static final int ASKING_MAX = 64;
    /** Ledgers that are pushed at the same time: each may hold a few MiB that are read and not answered. */
    private static final int PUSHING_MAX = 8;

    /** What goes by a connection: no read ever waits for what is offloaded. */
    private enum Kind { READS, OFFLOADS }

    private record Where(Settings settings, String address, Kind kind) {}

    private record Made(ManagedChannel channel, List<String> files) {}

    private final Map<Where, Made> channels = new ConcurrentHashMap<>();
    /** Puts things off for workers: one that is slow, in the broker's callbacks perhaps, holds up no other. */
    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(
            1, new ThreadFactoryBuilder().setNameFormat("offloaderd-timer").setDaemon(true).build());
    private final ThreadPoolExecutor workers = new ThreadPoolExecutor(
            WORKERS,
            WORKERS,
            30,
            TimeUnit.SECONDS,
            new LinkedBlockingQueue<>(),
            new ThreadFactoryBuilder().setNameFormat("offloaderd-%d").setDaemon(true).build());
    private final Turns asking = new Turns(ASKING_MAX, workers);
    private final Turns pushing = new Turns(PUSHING_MAX, workers);
    private final ReadMemory memory;
    private volatile boolean closed;

    Daemons() {
        this(new ReadMemory(PulsarByteBufAllocator.DEFAULT, Duration.ofSeconds(10)));
    }

    Daemons(ReadMemory memory) {
        this.memory = memory;
        workers.allowCoreThreadTimeOut(true);
        timer.setRemoveOnCancelPolicy(true);
    }

    /** Returns what all read handles share. */
    ReadMemory memory() {
        return memory;
    }

    /** Returns the threads that copy entries and call the broker back. */
    Executor workers() {
        return workers;
    }

    /**
     * Has a worker do something later, unless what is returned is cancelled before.
     *
     * @throws RejectedExecutionException when the broker ends
     */
    Future<?> later(Runnable task, long delay, TimeUnit unit) {
        return timer.schedule(() -> workers.execute(task), delay, unit);
    }

    /** Returns how many things are put off. */
    int putOff() {
        return timer.getQueue().size();
    }

    /** Returns the places of ledgers that ask whether they are offloaded. */
    Turns asking() {
        return asking;
    }

    /** Returns the places of ledgers that are pushed. */
    Turns pushing() {
        return pushing;
    }

    /** Returns the calls by which the daemon at an address is asked for what it has. */
    BrokerServiceGrpc.BrokerServiceStub ledgers(Settings settings, String address) {
        return shown(settings, BrokerServiceGrpc.newStub(channel(settings, address, Kind.READS)));
    }

    /** Returns the calls by which it is asked to offload; they go by a connection of their own, as the next. */
    BrokerServiceGrpc.BrokerServiceStub offloads(Settings settings, String address) {
        return shown(settings, BrokerServiceGrpc.newStub(channel(settings, address, Kind.OFFLOADS)));
    }

    /** Returns the calls by which entries are pushed to it. */
    OffloadServiceGrpc.OffloadServiceStub pushes(Settings settings, String address) {
        return shown(settings, OffloadServiceGrpc.newStub(channel(settings, address, Kind.OFFLOADS)));
    }

    private static <S extends AbstractStub<S>> S shown(Settings settings, S stub) {
        return settings.tokenFile().isEmpty() ? stub : stub.withCallCredentials(new Token(settings.tokenFile()));
    }

    private ManagedChannel channel(Settings settings, String address, Kind kind) {
        if (closed) {
            throw new IllegalStateException("the broker ends, and its connections are closed");
        }
        List<String> files = List.of(
                seen(settings.trustCertsFile()), seen(settings.certFile()), seen(settings.keyFile()));
        return channels.compute(new Where(settings, address, kind), (where, made) -> {
            if (made != null && made.files.equals(files)) {
                return made;
            }
            try {
                Made anew = new Made(connecting(settings, address), files);
                if (made == null && !settings.tokenFile().isEmpty() && !address.equals(settings.address())) {
                    LOG.info("The token goes to {} as well, which {} named, if its certificate is good", address,
                            settings.address());
                }
                if (made != null) {
                    LOG.info("Certificates have changed: connecting to {} anew", address);
                    made.channel.shutdown();
                }
                return anew;
            } catch (IllegalStateException | IllegalArgumentException error) {
                if (made == null) {
                    throw error;
                }
                LOG.warn("Certificates have changed and cannot be used, the old connection stays: {}", error.getMessage());
                return made;
            }
        }).channel;
    }

    private static ManagedChannel connecting(Settings settings, String address) {
        return OkHttpChannelBuilder
                .forTarget(address, credentials(settings))
                .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                .flowControlWindow(WINDOW_BYTES)
                .keepAliveTime(20, TimeUnit.SECONDS)
                .keepAliveTimeout(10, TimeUnit.SECONDS)
                .build();
    }

    /** Returns what is another when a file was replaced or rewritten; symbolic links are followed. */
    private static String seen(String file) {
        if (file.isEmpty()) {
            return "";
        }
        try {
            BasicFileAttributes found = Files.readAttributes(Path.of(file), BasicFileAttributes.class);
            return found.fileKey() + " " + found.size() + " " + found.lastModifiedTime();
        } catch (IOException error) {
            return "unreadable";
        }
    }

    private static ChannelCredentials credentials(Settings settings) {
        if (!settings.tls()) {
            return InsecureChannelCredentials.create();
        }
        TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
        try {
            if (!settings.trustCertsFile().isEmpty()) {
                builder.trustManager(new File(settings.trustCertsFile()));
            }
            if (!settings.certFile().isEmpty()) {
                builder.keyManager(new File(settings.certFile()), new File(settings.keyFile()));
            }
        } catch (IOException error) {
            throw new IllegalStateException("cannot read a certificate: " + error.getMessage(), error);
        }
        return builder.build();
    }

    @Override
    public void close() {
        closed = true;
        timer.shutdown(); // what is put off is still done in its time: reads that wait hear of the end
        channels.values().forEach(made -> made.channel.shutdownNow());
        channels.clear();
    }

    /** A token that is read anew for each call, so that it may be replaced, and goes nowhere that is not encrypted. */
    private static final class Token extends CallCredentials {
        private final Path file;

        private Token(String file) {
            this.file = Path.of(file);
        }

        @Override
        public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
            if (info.getSecurityLevel() != SecurityLevel.PRIVACY_AND_INTEGRITY) {
                applier.fail(Status.UNAUTHENTICATED.withDescription(
                        "a token is sent over TLS only, and " + info.getAuthority() + " is reached without it"));
                return;
            }
            executor.execute(() -> {
                try {
                    if (Files.size(file) > TOKEN_BYTES_MAX) {
                        throw new IOException("it is larger than a token can be");
                    }
                    Metadata headers = new Metadata();
                    headers.put(AUTHORIZATION, "Bearer " + Files.readString(file).trim());
                    applier.apply(headers);
                } catch (IOException | RuntimeException error) {
                    applier.fail(Status.UNAUTHENTICATED.withDescription(
                            "cannot read the token in " + file + ": " + error.getMessage()));
                }
            });
        }
    }
}
