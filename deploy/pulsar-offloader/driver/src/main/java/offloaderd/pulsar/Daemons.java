package offloaderd.pulsar;

import com.google.protobuf.Empty;
import io.grpc.CallCredentials;
import io.grpc.CallOptions;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.SecurityLevel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.okhttp.OkHttpChannelBuilder;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.AbstractStub;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import offloaderd.v1.BrokerServiceGrpc;
import offloaderd.v1.OffloadServiceGrpc;
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
    private static final int TOKEN_BYTES_MAX = 16 << 10;
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private static final Logger LOG = LoggerFactory.getLogger(Daemons.class);

    /** Ledgers of one broker that ask their daemons at the same time; a daemon serves 256 calls of a connection. */
    private static final int ASKING_MAX = 64;
    /** Ledgers that are pushed at the same time: each may hold a few MiB that are read and not answered. */
    private static final int PUSHING_MAX = 8;

    /** Whether a daemon is there; whoever asks. Its answer is not looked at: that there is one says enough. */
    static final MethodDescriptor<Empty, Empty> HEALTH = MethodDescriptor.<Empty, Empty>newBuilder()
            .setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName("grpc.health.v1.Health/Check")
            .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .build();

    /** What goes by a connection: no read ever waits for what is offloaded. */
    private enum Kind { READS, OFFLOADS }

    private record Where(Settings settings, String address, Kind kind) {}

    private record Made(ManagedChannel channel, List<String> files) {}

    private final Map<Where, Made> channels = new ConcurrentHashMap<>();
    private final Threads threads;
    private final Turns asking;
    private final Turns pushing;
    private final ReadMemory memory;
    private final Bucket bucket;
    private volatile boolean closed;

    Daemons() {
        this(new ReadMemory());
    }

    Daemons(ReadMemory memory) {
        this(memory, Executors.defaultThreadFactory());
    }

    /**
     * Starts the threads.
     *
     * @throws OutOfMemoryError if none can be started
     */
    Daemons(ReadMemory memory, ThreadFactory factory) {
        this.memory = memory;
        threads = new Threads(factory);
        asking = new Turns(ASKING_MAX, threads::work);
        pushing = new Turns(PUSHING_MAX, threads::work);
        bucket = new Bucket(threads.fetchers());
    }

    /** Returns what all read handles share. */
    ReadMemory memory() {
        return memory;
    }

    /** Returns the way to the bucket that goes through no daemon. */
    Bucket bucket() {
        return bucket;
    }

    /** Returns the threads that copy entries and call the broker back. */
    Executor workers() {
        return threads::work;
    }

    /**
     * Has a worker do something later, unless what is returned is cancelled before.
     *
     * @throws java.util.concurrent.RejectedExecutionException when the broker ends
     */
    Future<?> later(Runnable task, long delay, TimeUnit unit) {
        return threads.later(task, delay, unit);
    }

    /**
     * Returns a future that fails by itself when its time is up, so that it ends whatever becomes of who should end it.
     *
     * @throws java.util.concurrent.RejectedExecutionException when the broker ends
     */
    <T> CompletableFuture<T> limited(Duration time, Supplier<Throwable> late) {
        CompletableFuture<T> future = new CompletableFuture<>();
        Future<?> limit = later(() -> future.completeExceptionally(late.get()), time.toMillis(), TimeUnit.MILLISECONDS);
        future.whenComplete((value, error) -> limit.cancel(false));
        return future;
    }

    /** Returns how many things are put off. */
    int putOff() {
        return threads.putOff();
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
            } catch (StatusRuntimeException error) {
                if (made == null) {
                    throw error;
                }
                LOG.warn("Certificates have changed and cannot be used, the old connection stays: {}", Failures.told(error));
                return made;
            }
        }).channel;
    }

    private ManagedChannel connecting(Settings settings, String address) {
        ChannelCredentials credentials = credentials(settings);
        OkHttpChannelBuilder builder;
        try {
            builder = OkHttpChannelBuilder.forTarget(address, credentials);
        } catch (IllegalArgumentException error) {
            throw unusable(settings.shown() + " cannot be used: " + error.getMessage(), error);
        }
        try {
            return builder
                    .executor(threads::work)
                    .offloadExecutor(threads.connections())
                    .transportExecutor(threads.connections())
                    .scheduledExecutorService(threads.timerOfCalls())
                    .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                    .flowControlWindow(WINDOW_BYTES)
                    .keepAliveTime(20, TimeUnit.SECONDS)
                    .keepAliveTimeout(10, TimeUnit.SECONDS)
                    .build();
        } catch (IllegalArgumentException error) {
            String whose = address.equals(settings.address()) ? "Address is" : "the daemon names as owner";
            throw unusable(whose + " '" + address + "', which cannot be used: " + error.getMessage(), error);
        }
    }

    /** Returns an error that may pass: who mends a file or a name is not made to restart the broker. */
    private static StatusRuntimeException unusable(String what, Exception cause) {
        return Status.UNAVAILABLE.withDescription(what).withCause(cause).asRuntimeException();
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
            throw unusable(settings.shown() + " cannot be used, a file cannot be read: " + error.getMessage(), error);
        }
        return builder.build();
    }

    /**
     * Makes the connection to the configured daemon unless there is one, and says in the log what is wrong with it: an
     * address, a certificate, a token that cannot be used, or nobody who answers. Nobody waits for that, and nothing is
     * thrown: a broker starts without its daemon, and files and hosts may be mended while it runs.
     *
     * @return what is wrong; empty for nothing
     */
    CompletableFuture<String> inspect(Settings settings) {
        CompletableFuture<String> found = new CompletableFuture<>();
        if (channels.containsKey(new Where(settings, settings.address(), Kind.READS))) {
            found.complete("");
            return found;
        }
        found.thenAccept(wrong -> {
            if (!wrong.isEmpty() && !closed) { // a broker that ends closes what it began
                LOG.error("{}", wrong);
            }
        });
        try {
            CallOptions options = CallOptions.DEFAULT
                    .withDeadlineAfter(settings.callTimeout().toMillis(), TimeUnit.MILLISECONDS)
                    .withCallCredentials(settings.tokenFile().isEmpty() ? null : new Token(settings.tokenFile()));
            ManagedChannel channel = channel(settings, settings.address(), Kind.READS);
            ClientCalls.asyncUnaryCall(
                    channel.newCall(HEALTH, options), Empty.getDefaultInstance(), new Inspected(settings, found));
        } catch (Throwable error) {
            found.complete(Inspected.wrong(settings, error));
        }
        return found;
    }

    /** What becomes of the first call of a connection. */
    private record Inspected(Settings settings, CompletableFuture<String> found) implements StreamObserver<Empty> {
        private static String wrong(Settings settings, Throwable error) {
            String told = Failures.told(error);
            return "offloaderd's driver cannot reach its daemon as it is configured: "
                    + (told.contains(settings.shown()) ? "" : settings.shown() + ": ") + told + ". The broker works without it; what is offloaded cannot be read, and nothing"
                    + " is offloaded, until that is mended. Files are read again by themselves; other settings need a restart"
                    + " of the broker, or other policies of the namespace that has them";
        }

        @Override
        public void onNext(Empty health) {
            found.complete("");
        }

        @Override
        public void onError(Throwable error) {
            found.complete(wrong(settings, error));
        }

        @Override
        public void onCompleted() {
            found.complete("");
        }
    }

    @Override
    public void close() {
        closed = true;
        threads.close();
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
