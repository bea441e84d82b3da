package offloaderd.pulsar.compaction;

import java.util.Comparator;
import java.util.PriorityQueue;

/** Time as a number that tests move. */
final class FakeTime implements CompactedTier.Time {
    final PriorityQueue<Step> steps =
            new PriorityQueue<>(Comparator.comparingLong(Step::atMs).thenComparing(Step::number));
    private long nowMs;
    private int number;

    record Step(Runnable what, long atMs, int number) {}

    @Override
    public long nowMs() {
        return nowMs;
    }

    @Override
    public void later(Runnable step, long pauseMs) {
        steps.add(new Step(step, nowMs + pauseMs, ++number));
    }

    void advance(long ms) {
        long untilMs = nowMs + ms;
        while (!steps.isEmpty() && steps.peek().atMs() <= untilMs) {
            Step next = steps.remove();
            nowMs = next.atMs();
            next.what().run();
        }
        nowMs = untilMs;
    }
}
