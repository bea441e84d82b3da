package offloaderd.pulsar;

import java.util.concurrent.CompletionException;

/** Lets a stage of a future fail with a checked exception, which whoever waits for it gets as the cause. */
final class FutureFailure {
    private FutureFailure() {}

    static CompletionException of(Throwable error) {
        return new CompletionException(error);
    }
}
