package offloaderd.pulsar;

import com.google.common.util.concurrent.ThreadFactoryBuilder;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The threads of all offloaders of a broker. Whatever ends a future runs on threads that are started here at once and stay:
 * a process that may start no more threads (a limit of its user or container) delays connections, and no end of a call.
 * gRPC has no threads of its own: a callback of its that found none would be lost, and a channel whose connection found
 * none would refuse all calls for good.
 */
final class Threads implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(Threads.class);
    private static final int WORKERS = Math.max(8, 2 * Runtime.getRuntime().availableProcessors());
    /** Requests to the bucket at a time: with answers of 4 MiB after 100 ms each, 640 MiB/s. */
    private static final int FETCHERS = 16;
    private static final long IDLE_S = 30;
    private static final long PAUSE_MS = 200;

    /** Puts things off for workers: one that is slow, in the broker's callbacks perhaps, holds up no other. */
    private final ScheduledThreadPoolExecutor timer;
    private final ScheduledThreadPoolExecutor timerOfCalls;
    private final ThreadPoolExecutor workers;
    private final ThreadPoolExecutor connections;
    private final ThreadPoolExecutor fetchers;
    private volatile boolean lacking;

    /**
     * Starts threads, as many as can be had.
     *
     * @throws OutOfMemoryError if not even one of each kind can be started
     */
    Threads(ThreadFactory factory) {
        timer = new ScheduledThreadPoolExecutor(1, named("offloaderd-timer", factory));
        timerOfCalls = new ScheduledThreadPoolExecutor(1, named("offloaderd-calls", factory));
        workers = new ThreadPoolExecutor(
                WORKERS, WORKERS, IDLE_S, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), named("offloaderd-%d", factory));
        connections = new ThreadPoolExecutor(
                0, Integer.MAX_VALUE, IDLE_S, TimeUnit.SECONDS, new SynchronousQueue<>(),
                named("offloaderd-connection-%d", factory));
        fetchers = new ThreadPoolExecutor(
                FETCHERS, FETCHERS, IDLE_S, TimeUnit.SECONDS, new LinkedBlockingQueue<>(),
                named("offloaderd-bucket-%d", factory));
        fetchers.allowCoreThreadTimeOut(true);
        timer.setRemoveOnCancelPolicy(true);
        timerOfCalls.setRemoveOnCancelPolicy(true);
        try {
            timer.prestartCoreThread();
            timerOfCalls.prestartCoreThread();
            workers.prestartAllCoreThreads();
        } catch (OutOfMemoryError error) {
            if (workers.getPoolSize() == 0) {
                close();
                throw error;
            }
            LOG.warn("Only {} of {} threads could be started: {}", workers.getPoolSize(), WORKERS, error.getMessage());
        }
    }

    private static ThreadFactory named(String name, ThreadFactory factory) {
        return new ThreadFactoryBuilder().setNameFormat(name).setDaemon(true).setThreadFactory(factory).build();
    }

    /** Has a worker do something: copy entries, call the broker back. Refuses nothing. */
    void work(Runnable task) {
        Runnable guarded = () -> {
            try {
                task.run();
            } catch (Throwable error) { // or the worker would end, and perhaps none could be started in its place
                LOG.warn("A step of the driver failed", error);
            }
        };
        try {
            workers.execute(guarded);
        } catch (OutOfMemoryError none) { // there are fewer than there should be, and no more can be started
            workers.getQueue().add(guarded);
        }
    }

    /** Returns the threads of connections, which wait for ever; while no more can be started, it is tried again and again. */
    Executor connections() {
        return this::connect;
    }

    private void connect(Runnable task) {
        try {
            connections.execute(task);
            lacking = false;
        } catch (OutOfMemoryError none) {
            if (!lacking) {
                LOG.warn("No thread can be started for a connection to a daemon, trying again: {}", none.getMessage());
            }
            lacking = true;
            timer.schedule(() -> connect(task), PAUSE_MS, TimeUnit.MILLISECONDS);
        }
    }

    /** Returns the threads that wait for the bucket's answers; they throw OutOfMemoryError when none can be started. */
    Executor fetchers() {
        return fetchers;
    }

    /** Returns what ends calls in time. */
    ScheduledExecutorService timerOfCalls() {
        return timerOfCalls;
    }

    /**
     * Has a worker do something later, unless what is returned is cancelled before.
     *
     * @throws java.util.concurrent.RejectedExecutionException when the broker ends
     */
    Future<?> later(Runnable task, long delay, TimeUnit unit) {
        return timer.schedule(() -> work(task), delay, unit);
    }

    /** Returns how many things are put off. */
    int putOff() {
        return timer.getQueue().size();
    }

    /** Puts nothing more off. What is put off is still done in its time: reads that wait hear of the end. */
    @Override
    public void close() {
        timer.shutdown();
        for (ThreadPoolExecutor pool : new ThreadPoolExecutor[] {timerOfCalls, workers}) {
            pool.setKeepAliveTime(IDLE_S, TimeUnit.SECONDS);
            pool.allowCoreThreadTimeOut(true);
        }
    }
}
