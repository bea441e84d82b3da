package offloaderd.pulsar;

import com.google.common.util.concurrent.ThreadFactoryBuilder;
import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.okhttp.OkHttpChannelBuilder;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.BrokerServiceGrpc;
import offloaderd.v1.OffloadServiceGrpc;

/**
 * Connections to daemons: the one that is configured, and those that it names as owners of topics. They belong to the
 * factory, and outlive every offloader: a namespace's offloader is replaced whenever its policies change, while readers go
 * on.
 */
final class Daemons implements AutoCloseable {
    static final int BATCH_BYTES = 1 << 20;
    private static final int MESSAGE_BYTES_MAX = 33 << 20;
    private static final int WINDOW_BYTES = 2 << 20;
    private static final int TOKEN_BYTES_MAX = 16 << 10;
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private record Where(Settings settings, String address) {}

    private final Map<Where, ManagedChannel> channels = new ConcurrentHashMap<>();
    /** What is put off when the broker ends is never done. */
    private final ScheduledExecutorService timer = new ScheduledThreadPoolExecutor(
            1,
            new ThreadFactoryBuilder().setNameFormat("offloaderd-timer").setDaemon(true).build(),
            new ThreadPoolExecutor.DiscardPolicy());

    /** Returns what runs things later; they have to be short. */
    ScheduledExecutorService timer() {
        return timer;
    }

    /** Returns the ledger-wise calls of the daemon at an address. */
    BrokerServiceGrpc.BrokerServiceStub ledgers(Settings settings, String address) {
        BrokerServiceGrpc.BrokerServiceStub stub = BrokerServiceGrpc.newStub(channel(settings, address));
        return settings.tokenFile().isEmpty() ? stub : stub.withCallCredentials(new Token(settings.tokenFile()));
    }

    /** Returns the calls by which entries are pushed to the daemon at an address. */
    OffloadServiceGrpc.OffloadServiceStub pushes(Settings settings, String address) {
        OffloadServiceGrpc.OffloadServiceStub stub = OffloadServiceGrpc.newStub(channel(settings, address));
        return settings.tokenFile().isEmpty() ? stub : stub.withCallCredentials(new Token(settings.tokenFile()));
    }

    private ManagedChannel channel(Settings settings, String address) {
        return channels.computeIfAbsent(new Where(settings, address), where -> OkHttpChannelBuilder
                .forTarget(where.address, credentials(settings))
                .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                .flowControlWindow(WINDOW_BYTES)
                .keepAliveTime(20, TimeUnit.SECONDS)
                .keepAliveTimeout(10, TimeUnit.SECONDS)
                .build());
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
        timer.shutdownNow();
        channels.values().forEach(ManagedChannel::shutdownNow);
        channels.clear();
    }

    /** A token that is read anew for each call, so that it may be replaced. */
    private static final class Token extends CallCredentials {
        private final Path file;

        private Token(String file) {
            this.file = Path.of(file);
        }

        @Override
        public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
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
