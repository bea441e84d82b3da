package offloaderd.pulsar;

import java.util.ArrayDeque;
import java.util.concurrent.Executor;

/** Places for what may go on at the same time; what finds none waits in line. */
final class Turns {
    private final Executor executor;
    private final ArrayDeque<Runnable> line = new ArrayDeque<>();
    private int places;

    Turns(int places, Executor executor) {
        this.places = places;
        this.executor = executor;
    }

    /** Runs something once there is a place for it, which it has to give back by {@link #done}. */
    void take(Runnable begin, boolean first) {
        synchronized (this) {
            if (places == 0) {
                if (first) {
                    line.addFirst(begin);
                } else {
                    line.addLast(begin);
                }
                return;
            }
            places--;
        }
        begin.run();
    }

    /** Gives a place back; who has waited for it runs on another thread, so that a long line is no deep stack. */
    void done() {
        Runnable next;
        synchronized (this) {
            next = line.poll();
            if (next == null) {
                places++;
                return;
            }
        }
        executor.execute(next);
    }
}
