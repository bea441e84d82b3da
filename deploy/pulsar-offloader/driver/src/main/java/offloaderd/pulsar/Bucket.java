package offloaderd.pulsar;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The way by which a broker fetches from the bucket what its daemon signed a URL for. One failure may be an object's or a
 * connection's, and says nothing of other reads. After two without a success in between nobody goes it for a while: a
 * bucket that cannot be reached costs two reads some seconds, and not each.
 *
 * <p>A thread waits for each answer: java.net.http takes three times the CPU, which is what this is to spare.
 */
final class Bucket {
    static final Duration LEFT_ALONE = Duration.ofMinutes(10);
    private static final Logger LOG = LoggerFactory.getLogger(Bucket.class);
    private static final int CONNECT_MS = 3_000;
    private static final int PIECE_BYTES = 256 << 10;

    private final Executor threads;
    private volatile long usableNs = System.nanoTime();
    private volatile boolean failing;

    Bucket(Executor threads) {
        this.threads = threads;
    }

    boolean isUsable() {
        return System.nanoTime() - usableNs >= 0;
    }

    /** Notes that what was fetched is what was stored. */
    void succeeded() {
        failing = false;
    }

    /** Notes a failure. No URL is told: it is a secret. */
    synchronized void failed(String where, String why) {
        String told = why.replaceAll("\\S+://\\S+", "(a URL)");
        if (failing && isUsable()) {
            usableNs = System.nanoTime() + LEFT_ALONE.toNanos();
            LOG.warn("{}: the bucket does not give what is to be read, so it comes through the daemon for {} minutes: {}",
                    where, LEFT_ALONE.toMinutes(), told);
        } else if (!failing) {
            failing = true;
            LOG.info("{}: reading on through the daemon, the bucket does not give what is to be read: {}", where, told);
        }
    }

    /**
     * Fetches exactly so many bytes of an object, once a thread is free for it, unless {@code body} is done by then: who
     * waits no longer completes it, and the answer is then not read any further. No redirect is followed: only a daemon
     * says where to fetch.
     *
     * @throws OutOfMemoryError if no thread can be started
     */
    void get(URL url, long offset, int bytes, Duration patience, CompletableFuture<byte[]> body) {
        threads.execute(() -> {
            try {
                if (!isUsable()) {
                    throw new IOException("other requests have failed meanwhile");
                }
                if (!body.isDone()) {
                    body.complete(fetched(url, offset, bytes, patience, body));
                }
            } catch (Throwable error) {
                body.completeExceptionally(error);
            }
        });
    }

    private static byte[] fetched(URL url, long offset, int bytes, Duration patience, CompletableFuture<byte[]> wanted)
            throws IOException {
        HttpURLConnection get = (HttpURLConnection) url.openConnection();
        int at = 0;
        try {
            get.setInstanceFollowRedirects(false);
            get.setUseCaches(false);
            get.setConnectTimeout((int) Math.min(CONNECT_MS, patience.toMillis()));
            get.setReadTimeout((int) patience.toMillis());
            get.setRequestProperty("Range", "bytes=" + offset + "-" + (offset + bytes - 1));
            if (get.getResponseCode() != HttpURLConnection.HTTP_PARTIAL || get.getContentLengthLong() != bytes) {
                throw new IOException("it answered a request for " + bytes + " bytes with " + get.getResponseCode() + ", "
                        + get.getContentLengthLong() + " bytes");
            }
            byte[] found = new byte[bytes];
            InputStream body = get.getInputStream();
            while (at < bytes && !wanted.isDone()) {
                int more = body.read(found, at, Math.min(PIECE_BYTES, bytes - at));
                if (more < 0) {
                    throw new IOException("it sent " + at + " of " + bytes + " bytes");
                }
                at += more;
            }
            return found;
        } finally {
            if (at < bytes) {
                get.disconnect(); // else the next request would have the rest of this answer
            }
        }
    }
}
