package offloaderd.pulsar;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import java.util.EnumSet;
import java.util.Set;
import java.util.concurrent.CompletionException;
import offloaderd.v1.Common.ErrorDetail;
import org.apache.bookkeeper.mledger.ManagedLedgerException;

/** What a daemon's errors mean to a broker. */
final class Failures {
    private static final Metadata.Key<ErrorDetail> DETAIL = Metadata.Key.of(
            "offloaderd-error-bin", ProtoUtils.metadataMarshaller(ErrorDetail.getDefaultInstance()));
    /** The one reason that says that nothing is there any more, on purpose. */
    private static final String DELETED = "ENTRIES_DELETED";
    /** Of a daemon that restarts, is overloaded, or was cut off in the middle of an answer. */
    private static final Set<Status.Code> PASSING = EnumSet.of(
            Status.Code.UNAVAILABLE,
            Status.Code.RESOURCE_EXHAUSTED,
            Status.Code.DEADLINE_EXCEEDED,
            Status.Code.ABORTED,
            Status.Code.CANCELLED,
            Status.Code.INTERNAL,
            Status.Code.UNKNOWN);

    private Failures() {}

    /** Says whether the same call may succeed in a moment. */
    static boolean passes(Throwable error) {
        Throwable cause = root(error);
        return !isOurs(cause) && PASSING.contains(Status.fromThrowable(cause).getCode());
    }

    /** Says whether the driver gave up by itself, without a word of a daemon that would stand. */
    static boolean isOurs(Throwable error) {
        return root(error) instanceof ManagedLedgerException;
    }

    /**
     * Returns what the broker is to see. Only of a ledger that is on record as deleted it hears that there is none: with
     * {@code autoSkipNonRecoverableData} it skips that one for good. Everything else it tries again, also what a daemon
     * does not find, does not know, or believes to be lost: its metadata may be old, empty, or another cluster's.
     */
    static ManagedLedgerException of(Throwable error, String what) {
        Throwable cause = root(error);
        if (cause instanceof ManagedLedgerException known) {
            return known;
        }
        ErrorDetail detail = detail(cause);
        String message = what + ": " + told(error) + (detail.getHint().isEmpty() ? "" : " (" + detail.getHint() + ")");
        return detail.getReason().equals(DELETED)
                ? new ManagedLedgerException.LedgerNotExistException(message)
                : new ManagedLedgerException(message);
    }

    /** Says whether a message was refused for its size: that is gRPC's own word, and none of a daemon that is busy. */
    static boolean tooLarge(Throwable error) {
        Throwable cause = root(error);
        return Status.fromThrowable(cause).getCode() == Status.Code.RESOURCE_EXHAUSTED
                && detail(cause).getReason().isEmpty();
    }

    private static ErrorDetail detail(Throwable cause) {
        ErrorDetail found = null;
        if (cause instanceof StatusRuntimeException answer && answer.getTrailers() != null) {
            found = answer.getTrailers().get(DETAIL);
        }
        return found != null ? found : ErrorDetail.getDefaultInstance();
    }

    /** Says what went wrong; of a daemon that was not reached, what its connection failed of. */
    static String told(Throwable error) {
        Throwable cause = root(error);
        Status status = Status.fromThrowable(cause);
        if (status.getDescription() != null) {
            return status.getDescription();
        }
        return status.getCode() + ": " + (status.getCause() != null ? status.getCause() : cause);
    }

    private static Throwable root(Throwable error) {
        Throwable cause = error;
        while (cause instanceof CompletionException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }
}
