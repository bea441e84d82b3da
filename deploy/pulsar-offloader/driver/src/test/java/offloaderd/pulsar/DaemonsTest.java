package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.Empty;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.ServerServiceDefinition;
import io.grpc.TlsServerCredentials;
import io.grpc.okhttp.OkHttpServerBuilder;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.InputStream;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLSession;
import offloaderd.v1.Broker.OpenLedgerRequest;
import offloaderd.v1.Broker.OpenLedgerResponse;
import offloaderd.v1.BrokerServiceGrpc;
import org.junit.After;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Connections to daemons: what they show, to whom, and what they do when that changes. */
public class DaemonsTest {
    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final List<String> callers = new CopyOnWriteArrayList<>();
    private final Set<SocketAddress> connections = ConcurrentHashMap.newKeySet();
    private final List<String> tokens = new CopyOnWriteArrayList<>();
    private final Daemons daemons = new Daemons();
    private final Queue<StreamObserver<OpenLedgerResponse>> held = new ConcurrentLinkedQueue<>();
    private volatile boolean holds;
    private Server server;

    /** A certificate that signs itself, with its key, as PEM. */
    private record Pair(String cert, String key) {
        InputStream certStream() {
            return new ByteArrayInputStream(cert.getBytes(StandardCharsets.US_ASCII));
        }

        InputStream keyStream() {
            return new ByteArrayInputStream(key.getBytes(StandardCharsets.US_ASCII));
        }
    }

    private final class Service extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public void openLedger(OpenLedgerRequest request, StreamObserver<OpenLedgerResponse> answer) {
            if (holds) {
                held.add(answer);
            } else {
                answer.onNext(OpenLedgerResponse.getDefaultInstance());
                answer.onCompleted();
            }
        }
    }

    /** Returns the call by which a daemon says that it is there. */
    static ServerServiceDefinition health(AtomicInteger asked) {
        return ServerServiceDefinition.builder("grpc.health.v1.Health")
                .addMethod(Daemons.HEALTH, ServerCalls.asyncUnaryCall((request, answer) -> {
                    asked.incrementAndGet();
                    answer.onNext(Empty.getDefaultInstance());
                    answer.onCompleted();
                }))
                .build();
    }

    /** Notes who calls, by certificate and token. */
    private final class Witness implements ServerInterceptor {
        @Override
        public <Q, A> ServerCall.Listener<Q> interceptCall(
                ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
            connections.add(call.getAttributes().get(Grpc.TRANSPORT_ATTR_REMOTE_ADDR));
            SSLSession session = call.getAttributes().get(Grpc.TRANSPORT_ATTR_SSL_SESSION);
            try {
                callers.add(session == null ? "nobody"
                        : ((X509Certificate) session.getPeerCertificates()[0]).getSubjectX500Principal().getName());
            } catch (Exception error) {
                callers.add(error.toString());
            }
            tokens.add(String.valueOf(headers.get(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER))));
            return next.startCall(call, headers);
        }
    }

    private void serve(ServerCredentials credentials) throws Exception {
        server = OkHttpServerBuilder.forPort(0, credentials).addService(new Service())
                .addService(health(new AtomicInteger())).intercept(new Witness()).build().start();
    }

    @After
    public void end() {
        daemons.close();
        if (server != null) {
            server.shutdownNow();
        }
    }

    private Pair pair(String name) throws Exception {
        File store = new File(folder.getRoot(), name + ".p12");
        Process process = new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-genkeypair", "-alias", "a",
                "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=" + name, "-ext", "san=ip:127.0.0.1", "-storetype",
                "PKCS12", "-storepass", "changeit", "-keystore", store.getPath()).redirectErrorStream(true).start();
        assertEquals(new String(process.getInputStream().readAllBytes()), 0, process.waitFor());
        KeyStore keys = KeyStore.getInstance(store, "changeit".toCharArray());
        return new Pair(
                pem("CERTIFICATE", keys.getCertificate("a").getEncoded()),
                pem("PRIVATE KEY", keys.getKey("a", "changeit".toCharArray()).getEncoded()));
    }

    private static String pem(String kind, byte[] content) {
        String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content);
        return "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n";
    }

    /** Puts a file into another's place, as those do that renew certificates. */
    private String written(String name, String content) throws Exception {
        Path path = folder.getRoot().toPath().resolve(name);
        Path beside = path.resolveSibling(name + ".new");
        Files.writeString(beside, content);
        Files.move(beside, path, StandardCopyOption.REPLACE_EXISTING);
        return path.toString();
    }

    private Settings settings(boolean tls, String trust, String cert, String key, String token) {
        return settings("127.0.0.1:" + server.getPort(), tls, trust, cert, key, token);
    }

    private static Settings settings(String address, boolean tls, String trust, String cert, String key, String token) {
        Duration patience = Duration.ofSeconds(30);
        return new Settings(address, tls, trust, cert, key, token, patience, patience, patience, 0, 0, false);
    }

    private void call(Settings settings) throws Exception {
        begun(settings).get(30, TimeUnit.SECONDS);
    }

    private CompletableFuture<OpenLedgerResponse> begun(Settings settings) {
        CompletableFuture<OpenLedgerResponse> done = new CompletableFuture<>();
        daemons.ledgers(settings, settings.address()).openLedger(
                OpenLedgerRequest.getDefaultInstance(),
                new StreamObserver<>() {
                    @Override
                    public void onNext(OpenLedgerResponse answer) {
                        done.complete(answer);
                    }

                    @Override
                    public void onError(Throwable error) {
                        done.completeExceptionally(error);
                    }

                    @Override
                    public void onCompleted() {}
                });
        return done;
    }

    @Test
    public void aTokenIsNeverSentWithoutTls() throws Exception {
        serve(InsecureServerCredentials.create());
        Settings careless = settings(false, "", "", "", written("token", "superuser"));
        ExecutionException error = assertThrows(ExecutionException.class, () -> call(careless));
        assertTrue(error.getMessage(), error.getMessage().contains("a token is sent over TLS only"));
        assertEquals(List.of(), callers);
    }

    @Test
    public void certificatesAndTokensAreReadAgainWhenTheyChange() throws Exception {
        Pair daemon = pair("daemon");
        Pair first = pair("first");
        Pair second = pair("second");
        serve(TlsServerCredentials.newBuilder()
                .keyManager(daemon.certStream(), daemon.keyStream())
                .trustManager(new ByteArrayInputStream((first.cert + second.cert).getBytes(StandardCharsets.US_ASCII)))
                .clientAuth(TlsServerCredentials.ClientAuth.REQUIRE)
                .build());
        Settings settings = settings(true, written("ca", daemon.cert), written("cert", first.cert),
                written("key", first.key), written("token", "one"));
        call(settings);
        call(settings);
        written("cert", second.cert);
        written("key", second.key);
        written("token", "two");
        call(settings);
        written("key", "no key");
        call(settings);
        assertEquals(List.of("CN=first", "CN=first", "CN=second", "CN=second"), callers);
        assertEquals(List.of("Bearer one", "Bearer one", "Bearer two", "Bearer two"), tokens);
    }

    @Test
    public void callsThatRunEndOnTheOldConnection() throws Exception {
        serve(InsecureServerCredentials.create());
        Settings settings = settings(false, written("ca", "one"), "", "", "");
        holds = true;
        CompletableFuture<OpenLedgerResponse> running = begun(settings);
        ReadDaemon.until("the call runs", () -> !held.isEmpty());
        holds = false;
        written("ca", "two");
        call(settings);
        assertEquals(2, connections.size());
        held.element().onNext(OpenLedgerResponse.getDefaultInstance());
        held.element().onCompleted();
        running.get(30, TimeUnit.SECONDS);
    }

    private String wrong(Settings settings) throws Exception {
        return daemons.inspect(settings).get(30, TimeUnit.SECONDS);
    }

    private void told(Settings settings, String... words) throws Exception {
        String wrong = wrong(settings);
        for (String word : words) {
            assertTrue(wrong, wrong.contains(word));
        }
    }

    @Test
    public void whatIsWrongWithAnAddressOrAFileIsToldAtOnceWithItsSetting() throws Exception {
        serve(InsecureServerCredentials.create());
        String here = "127.0.0.1:" + server.getPort();
        String gone = new File(folder.getRoot(), "gone").getPath();
        String half = written("half", "-----BEGIN CERTIFICATE-----\nMIIB");
        told(settings("no_host_:7650", false, "", "", "", ""), "Address is 'no_host_:7650', which cannot be used");
        told(settings(here, true, gone, "", "", ""), "TlsTrustCertsFile=" + gone, "cannot be read");
        told(settings(here, true, "", gone, half, ""), "TlsCertFile=" + gone, "cannot be read");
        told(settings(here, true, half, "", "", ""), "TlsTrustCertsFile=" + half, "Unable to load root certificates");
        told(settings(here, true, "", half, half, ""), "TlsCertFile=" + half, "Unable to load private key");
        told(settings(here, true, "", "", "", ""), "Address=" + here + ", Tls=true", "UNAVAILABLE");
        told(settings(here, false, "", "", "", half), "TokenFile=" + half, "a token is sent over TLS only");
        told(settings("no-such-host.invalid:7650", false, "", "", "", ""), "Unable to resolve host no-such-host.invalid");
        assertEquals(List.of(), callers);
        assertEquals("", wrong(settings(here, false, "", "", "", "")));
        assertEquals("an address that is known is not asked again", "", wrong(settings(here, false, "", "", "", "")));
        assertEquals(1, callers.size());
        server.shutdownNow().awaitTermination();
        told(settings(here, false, gone, "", "", ""), "Address=" + here, "UNAVAILABLE");
    }

    @Test
    public void aCertificateOfAnotherAuthorityAndATokenThatIsGoneAreToldAtOnce() throws Exception {
        Pair daemon = pair("daemon");
        serve(TlsServerCredentials.newBuilder().keyManager(daemon.certStream(), daemon.keyStream()).build());
        String ca = written("ca", daemon.cert);
        told(settings(true, written("other", pair("other").cert), "", "", ""), "TlsTrustCertsFile=", "certif");
        String gone = new File(folder.getRoot(), "gone").getPath();
        told(settings(true, ca, "", "", gone), "TokenFile=" + gone, "cannot read the token in " + gone);
        assertEquals("", wrong(settings(true, ca, "", "", written("token", "one"))));
    }
}
