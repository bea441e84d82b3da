package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.TlsServerCredentials;
import io.grpc.okhttp.OkHttpServerBuilder;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
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
    private final List<String> tokens = new CopyOnWriteArrayList<>();
    private final Daemons daemons = new Daemons();
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

    private static final class Service extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public void openLedger(OpenLedgerRequest request, StreamObserver<OpenLedgerResponse> answer) {
            answer.onNext(OpenLedgerResponse.getDefaultInstance());
            answer.onCompleted();
        }
    }

    /** Notes who calls, by certificate and token. */
    private final class Witness implements ServerInterceptor {
        @Override
        public <Q, A> ServerCall.Listener<Q> interceptCall(
                ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
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
        server = OkHttpServerBuilder.forPort(0, credentials).addService(new Service()).intercept(new Witness())
                .build().start();
    }

    @After
    public void end() {
        daemons.close();
        server.shutdownNow();
    }

    private Pair pair(String name) throws Exception {
        File store = new File(folder.getRoot(), name + ".p12");
        Process process = new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-genkeypair", "-alias", "a",
                "-keyalg", "RSA", "-keysize", "2048", "-dname", "CN=" + name, "-ext", "san=ip:127.0.0.1", "-storetype",
                "PKCS12", "-storepass", "changeit", "-keystore", store.getPath()).inheritIO().start();
        assertEquals(0, process.waitFor());
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
        Duration patience = Duration.ofSeconds(30);
        String address = "127.0.0.1:" + server.getPort();
        return new Settings(address, tls, trust, cert, key, token, patience, patience, patience, 0, 0);
    }

    private void call(Settings settings) throws Exception {
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
        done.get(30, TimeUnit.SECONDS);
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
}
