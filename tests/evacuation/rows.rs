//! protocol.md §3, row by row: what becomes of an entry in each state, whatever happens then.

use podmon::controller::step::Outcome;
use podmon::controller::step::{Refused, Step, Unfenced};
use podmon::journal::Phase;

use crate::bench::{A, Bench, seconds};

#[test]
fn not_listed_healed_is_dropped() {
    let mut bench = Bench::failed_node();
    bench.until("ask");
    bench.cluster.heal_node(A);
    bench.over();
    bench.untouched();
}

#[test]
fn not_listed_gone_is_dropped() {
    let mut bench = Bench::failed_node();
    bench.until("ask");
    let uid = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.remove_pod(&uid);
    bench.changed();
    bench.over();
    bench.untouched();
}

#[test]
fn not_listed_node_gone_is_kubernetes_to_finish() {
    let mut bench = Bench::failed_node();
    bench.until("ask");
    bench.cluster.delete_node(A);
    bench.over();
    bench.untouched();
}

#[test]
fn listed_healed_before_any_fence_was_sent_is_taken_back() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let Step::Fence(fence) = bench.take("fence") else {
        panic!()
    };
    bench.cluster.heal_node(A);
    let uid = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.edit_pod(&uid, |pod| pod.ready = true);
    let outcome = Outcome::Fence {
        evacuation: fence.evacuation,
        volume: fence.volume,
        node: fence.node,
        started: bench.now,
        result: Err(Unfenced::NeverSent("connection refused".into())),
    };
    bench.evacuation.outdate(bench.now);
    bench.deliver(outcome);
    bench.over();
    assert_eq!((bench.count("fence"), bench.count("delete")), (0, 0));
    // Once, and not again and again.
    assert_eq!(bench.count("patch away"), 1, "{:?}", bench.log);
    assert!(!bench.cluster.tainted(A) && bench.cluster.journal(A).is_none());
}

#[test]
fn listed_healed_after_a_fence_goes_forward() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    bench.perform(0);
    bench.cluster.heal_node(A);
    bench.changed();
    bench.close();
    assert_eq!(bench.count("delete pod"), 1);
}

#[test]
fn listed_after_a_restart_is_adopted_first_and_fenced_again() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    bench.crash();
    bench.close();
    let restart = bench.position("leader is ctl-0/2");
    assert!(
        bench.log[restart + 1].starts_with("open"),
        "{:?}",
        bench.log
    );
    assert!(
        bench.log[restart + 2].starts_with("fence"),
        "{:?}",
        bench.log
    );
}

#[test]
fn listed_after_a_restart_goes_forward_on_a_healed_node() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    bench.crash();
    bench.cluster.heal_node(A);
    bench.close();
    assert!(bench.count("fence") >= 1 && bench.count("delete pod") == 1);
}

#[test]
fn listed_with_a_driver_that_fails_is_tried_again_ever_more_slowly() {
    let mut bench = Bench::failed_node();
    let mut times = Vec::new();
    for _ in 0..9 {
        bench.until("fence");
        times.push(bench.now);
        let fence = bench.take("fence");
        bench.lose(&fence);
    }
    let waits: Vec<u64> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(bench.count("delete"), 0);
    assert_eq!(bench.events().len(), 1, "told once: {:?}", bench.events());
    bench.close();
}

#[test]
fn listed_gone_by_other_hands_goes_on_while_its_attachment_exists() {
    let mut bench = Bench::failed_node();
    bench.kubernetes = false;
    bench.until("fence");
    let uid = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.remove_pod(&uid);
    bench.changed();
    bench.until("delete attachment");
    assert_eq!((bench.count("fence"), bench.count("delete pod")), (1, 0));
    bench.kubernetes = true;
    bench.close();
}

#[test]
fn given_up_and_gone_with_its_attachment_is_fenced_once_more_and_closed() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let fence = bench.take("fence");
    let uid = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.remove_pod(&uid);
    bench.cluster.attachments.clear();
    bench.evacuation.outdate(bench.now);
    bench.lose(&fence);
    bench.close();
    assert_eq!(bench.count("fence pv1"), 1);
}

#[test]
fn listed_node_gone_goes_on_from_memory_and_forgets() {
    for kind in ["fence", "delete pod", "delete attachment"] {
        let mut bench = Bench::failed_node();
        bench.until(kind);
        bench.cluster.delete_node(A);
        bench.changed();
        bench.over();
        assert_eq!(
            (
                bench.count("fence"),
                bench.count("delete pod"),
                bench.count("delete attachment")
            ),
            (1, 1, 1),
            "{kind}"
        );
        assert_eq!(bench.evacuation.journal(), None);
    }
}

#[test]
fn fenced_too_long_ago_is_fenced_again() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    let delete = bench.take("delete pod");
    bench.lose(&delete);
    // The API server takes no delete for a while.
    for _ in 0..5 {
        bench.until("delete pod");
        let delete = bench.take("delete pod");
        bench.lose(&delete);
    }
    assert!(bench.count("fence") >= 2, "{:?}", bench.log);
    bench.close();
}

#[test]
fn deleted_pod_kept_by_a_finalizer_keeps_its_attachment() {
    let mut bench = Bench::failed_node();
    let uid = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench
        .cluster
        .edit_pod(&uid, |pod| pod.finalizers = vec!["example.com/slow".into()]);
    bench.pass(seconds(200));
    assert_eq!(
        (bench.count("delete pod"), bench.count("delete attachment")),
        (1, 0)
    );
    assert_eq!(
        bench
            .events()
            .iter()
            .filter(|event| event.contains("example.com/slow"))
            .count(),
        1,
        "{:?}",
        bench.events()
    );
    bench.cluster.remove_pod(&uid);
    bench.changed();
    bench.close();
}

#[test]
fn a_refused_pod_delete_is_tried_again_and_its_message_told() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    let Step::DeletePod { pod, .. } = bench.take("delete pod") else {
        panic!()
    };
    bench.deliver(Outcome::DeletePod {
        pod,
        result: Err(Refused::Failed("webhook says no".into())),
    });
    bench.until("delete pod");
    assert!(
        bench
            .events()
            .iter()
            .any(|event| event.contains("webhook says no")),
        "{:?}",
        bench.events()
    );
    assert_eq!(bench.count("delete attachment"), 0);
    bench.close();
}

#[test]
fn a_refused_attachment_delete_is_tried_again() {
    let mut bench = Bench::failed_node();
    bench.kubernetes = false;
    for _ in 0..3 {
        bench.until("delete attachment");
        let delete = bench.take("delete attachment");
        bench.lose(&delete);
    }
    bench.kubernetes = true;
    bench.close();
}

#[test]
fn pod_absent_after_a_restart_is_released_all_the_same() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.crash();
    bench.close();
    assert_eq!(
        (bench.count("delete pod"), bench.count("delete attachment")),
        (1, 1)
    );
}

#[test]
fn released_is_closed_by_whoever_leads_then() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.perform(0);
    bench.crash();
    bench.close();
}

#[test]
fn failure_while_closed_opens_it_again_and_keeps_what_is_gone() {
    let mut bench = Bench::failed_node();
    bench.close();
    let first = bench.cluster.journal(A).expect("a closed journal");
    let again = bench.cluster.run("db-1", A, &["pv1"]);
    bench.cluster.edit_pod(&again, |pod| pod.ready = false);
    bench.changed();
    bench.until("fence");
    let second = bench.cluster.journal(A).expect("an open journal");
    assert!(second.id != first.id && second.gone == first.gone && second.phase == Phase::Open);
    assert!(second.pods.contains_key(&again));
    bench.close();
}

#[test]
fn a_taint_that_is_missing_is_put_back() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    bench.cluster.edit_node(A, |node| {
        node.taints
            .retain(|taint| taint.key != crate::cluster::names().taint)
    });
    let delete = bench.take("delete pod");
    bench.changed();
    bench.go("the taint", |bench| bench.cluster.tainted(A));
    bench.pending.push(delete);
    bench.close();
}

#[test]
fn an_unreadable_journal_gives_way_to_a_closed_one() {
    let mut bench =
        Bench::new(|cluster| cluster.edit_node(A, |node| node.journal = Some("{}".into())));
    bench.close();
    assert_eq!(bench.count("fence"), 0);
}

#[test]
fn an_unreadable_journal_does_not_hinder_fresh_evidence() {
    let mut bench = Bench::failed_node();
    bench
        .cluster
        .edit_node(A, |node| node.journal = Some(r#"{"v":9}"#.into()));
    bench.close();
    assert_eq!((bench.count("fence"), bench.count("delete pod")), (1, 1));
}

#[test]
fn a_conflict_is_decided_anew() {
    let mut bench = Bench::failed_node();
    bench.until("patch");
    bench.cluster.heal_node(A);
    bench.over();
    assert_eq!(
        (bench.count("open"), bench.count("fence")),
        (1, 0),
        "refused, and not sent again: {:?}",
        bench.log
    );
    assert!(bench.cluster.journal(A).is_none());
}
