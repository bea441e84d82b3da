package org.apache.pulsar.broker;

import java.util.concurrent.Callable;

/** Stands for the broker: what it makes while it starts, and what it makes for a namespace later. */
public final class PulsarService {
    private PulsarService() {}

    /** Makes something as the broker makes its default offloader. */
    public static <T> T start(Callable<T> maker) throws Exception {
        return maker.call();
    }

    /** Makes something as the broker makes a namespace's offloader. */
    public static <T> T getManagedLedgerOffloader(Callable<T> maker) throws Exception {
        return maker.call();
    }
}
