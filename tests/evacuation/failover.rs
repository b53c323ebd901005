//! The plain road, from the announcement to the closed journal.

use crate::bench::{A, Bench};

#[test]
fn plain_failover_in_order() {
    let mut bench = Bench::failed_node();
    bench.close();
    insta::assert_snapshot!(bench.log.join("\n"), @"
    open db-0-3 gone  +taint
    fence pv1 id-a
    event NodeFailure: podmon cleaning pod [db-0-3 a] with force delete
    delete pod db-0-3 Ok(Gone)
    forget in use
    delete attachment va-pv1-a-4
    close
    ");
    assert!(bench.cluster.tainted(A) && !bench.cluster.can_write("pv1", A));
}
