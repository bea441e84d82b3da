package offloaderd.reader;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.Help;
import com.google.rpc.Status;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.Iterator;
import java.util.zip.CRC32C;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Read.ReadRequest;
import offloaderd.v1.Read.ReadResponse;
import offloaderd.v1.ReadServiceGrpc;

/** Reads a topic from offloaderd: a client made from protos/ alone. {@code make readers} builds it. */
public final class Reader {
    private static final int MESSAGE_BYTES_MAX = 64 << 20;

    private Reader() {}

    /** Reads the topic of the second argument from the daemon of the first. */
    public static void main(String[] arguments) {
        if (arguments.length != 2) {
            System.err.println("usage: reader HOST:PORT TOPIC");
            System.exit(2);
        }
        ManagedChannel channel = Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create())
                .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                .build();
        int code = 0;
        try {
            read(channel, arguments[1]);
        } catch (StatusRuntimeException error) {
            explain(error);
            code = 1;
        } finally {
            channel.shutdownNow();
        }
        System.exit(code);
    }

    /** Prints position, length and CRC-32C of every entry of a topic. */
    private static void read(ManagedChannel channel, String topic) {
        Iterator<ReadResponse> answers = ReadServiceGrpc.newBlockingStub(channel)
                .read(ReadRequest.newBuilder().setTopic(topic).build());
        while (answers.hasNext()) {
            EntryBatch batch = answers.next().getBatch();
            long entry = batch.getFirstEntryId();
            for (ByteString payload : batch.getPayloadsList()) {
                CRC32C sum = new CRC32C();
                sum.update(payload.asReadOnlyByteBuffer());
                System.out.printf("%d:%d %d %08x%n", batch.getLedgerId(), entry++, payload.size(), sum.getValue());
            }
        }
    }

    /** Prints what the daemon said of an error: its code, the reason, and what to do. */
    private static void explain(StatusRuntimeException error) {
        Status status = StatusProto.fromThrowable(error);
        String reason = "";
        String hint = "";
        try {
            for (Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    reason = detail.unpack(ErrorInfo.class).getReason();
                } else if (detail.is(Help.class)) {
                    hint = detail.unpack(Help.class).getLinks(0).getDescription();
                }
            }
        } catch (InvalidProtocolBufferException damaged) {
            hint = damaged.getMessage();
        }
        io.grpc.Status told = error.getStatus();
        System.err.printf("%s %s: %s%n%s%n", told.getCode(), reason, told.getDescription(), hint);
    }
}
