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
 * The way by which a broker fetches from the bucket what its daemon signed a URL for. After a failure nobody goes it for a
 * while: a bucket that cannot be reached costs one read some seconds, and not each.
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

    Bucket(Executor threads) {
        this.threads = threads;
    }

    boolean isUsable() {
        return System.nanoTime() - usableNs >= 0;
    }

    /** Notes a failure. No URL is told: it is a secret. */
    synchronized void failed(String where, String why) {
        if (isUsable()) {
            usableNs = System.nanoTime() + LEFT_ALONE.toNanos();
            LOG.warn("{}: the bucket does not give what is to be read, so it comes through the daemon for {} minutes: {}",
                    where, LEFT_ALONE.toMinutes(), why.replaceAll("\\S+://\\S+", "(a URL)"));
        }
    }

    /**
     * Fetches exactly so many bytes of an object, once a thread is free for it. No redirect is followed: only a daemon says
     * where to fetch. What is returned may be cancelled; the answer is then not read any further.
     *
     * @throws OutOfMemoryError if no thread can be started
     */
    CompletableFuture<byte[]> get(URL url, long offset, int bytes, Duration patience) {
        CompletableFuture<byte[]> body = new CompletableFuture<>();
        threads.execute(() -> {
            try {
                if (!isUsable()) {
                    throw new IOException("another request has failed meanwhile");
                }
                if (!body.isDone()) {
                    body.complete(fetched(url, offset, bytes, patience, body));
                }
            } catch (Throwable error) {
                body.completeExceptionally(error);
            }
        });
        return body;
    }

    private static byte[] fetched(URL url, long offset, int bytes, Duration patience, CompletableFuture<byte[]> wanted)
            throws IOException {
        HttpURLConnection get = (HttpURLConnection) url.openConnection();
        long beganNs = System.nanoTime();
        int at = 0;
        try {
            get.setInstanceFollowRedirects(false);
            get.setUseCaches(false);
            get.setConnectTimeout(CONNECT_MS);
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
                if (at < bytes && System.nanoTime() - beganNs > patience.toNanos()) {
                    throw new IOException("it sent " + at + " of " + bytes + " bytes in " + patience.toSeconds() + " s");
                }
            }
            return found;
        } finally {
            if (at < bytes) {
                get.disconnect(); // else the next request would have the rest of this answer
            }
        }
    }
}
