package org.apache.bookkeeper.client;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** A client that opens ledgers when a test says so; its handles are null, which is enough for who only passes them on. */
public final class FakeBookKeeper extends BookKeeper {
    private final List<Long> opens = new ArrayList<>();
    private final Deque<AsyncCallback.OpenCallback> waiting = new ArrayDeque<>();

    @Override
    public void asyncOpenLedger(
            long ledgerId, DigestType digest, byte[] password, AsyncCallback.OpenCallback callback, Object context) {
        opens.add(ledgerId);
        waiting.add(callback);
    }

    /** Returns the ledgers that were to be opened, in order. */
    public List<Long> opens() {
        return opens;
    }

    /** Ends the oldest open that waits. */
    public void answer(int code) {
        waiting.remove().openComplete(code, null, null);
    }
}
