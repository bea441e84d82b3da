package offloaderd.pulsar;

import io.netty.buffer.ByteBufAllocator;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.common.allocator.PulsarByteBufAllocator;

/**
 * The heap that all read handles of a broker hold together: what was read ahead, what was asked for and is on its way, and
 * what a connection may hold of an open stream. What a read waits for is always asked for; only reading ahead is
 * refused. Entries that are handed out are in the broker's own memory, from its own allocator.
 */
final class ReadMemory implements ReadMemoryMXBean {
    private final ByteBufAllocator allocator;
    private final Duration idle;
    private final AtomicLong used = new AtomicLong();
    private final AtomicLong refusals = new AtomicLong();
    private volatile long limit = Long.MAX_VALUE;

    ReadMemory() {
        this(PulsarByteBufAllocator.DEFAULT, Duration.ofSeconds(10));
    }

    ReadMemory(ByteBufAllocator allocator, Duration idle) {
        this.allocator = allocator;
        this.idle = idle;
    }

    ByteBufAllocator allocator() {
        return allocator;
    }

    /** Returns for how long a lane that nobody uses keeps what it holds. */
    Duration idle() {
        return idle;
    }

    void limit(long bytes) {
        limit = bytes;
    }

    /** Takes bytes if there is room for them. */
    boolean take(long bytes) {
        if (used.addAndGet(bytes) <= limit) {
            return true;
        }
        used.addAndGet(-bytes);
        refusals.incrementAndGet();
        return false;
    }

    /** Takes bytes without which a read cannot go on, whether there is room or not. */
    void need(long bytes) {
        used.addAndGet(bytes);
    }

    void giveBack(long bytes) {
        used.addAndGet(-bytes);
    }

    @Override
    public long getUsedBytes() {
        return used.get();
    }

    @Override
    public long getLimitBytes() {
        return limit;
    }

    @Override
    public long getRefusals() {
        return refusals.get();
    }
}
