//! protocol.md §5: no fence may hit a later, rightful publish.

use std::time::Duration;

use podmon::controller::step::{GUARD, Outcome, Step};
use podmon::journal::Phase;

use crate::bench::{A, Bench, seconds, word};

#[test]
fn guard_1_a_fence_needs_a_node_read_a_moment_ago() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let fence = bench.take("fence");
    bench.lose(&fence);
    bench.wait(seconds(5));
    assert!(
        bench.pending.iter().all(|step| word(step) != "fence"),
        "{:?}",
        bench.pending
    );
    bench.until("fence");
    let Some(Step::Fence(fence)) = bench.pending.first() else {
        panic!()
    };
    assert!(bench.now - fence.confirmed <= GUARD);
}

#[test]
fn guard_1_a_fence_that_comes_too_late_is_withheld() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    bench.now = bench.now + GUARD + Duration::from_millis(1);
    bench.perform(0);
    assert!(bench.cluster.can_write("pv1", A));
    bench.close();
    assert!(!bench.cluster.can_write("pv1", A));
}

#[test]
fn guard_1_no_fence_under_anothers_journal() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let fence = bench.take("fence");
    let mut journal = bench.cluster.journal(A).expect("a journal");
    journal.by = "ctl-1/2".into();
    bench
        .cluster
        .edit_node(A, |node| node.journal = Some(journal.write()));
    bench.evacuation.outdate(bench.now);
    bench.lose(&fence);
    bench.until("survey");
    bench.perform(0);
    assert!(
        bench.pending.iter().all(|step| word(step) != "fence"),
        "adopt first: {:?}",
        bench.pending
    );
}

#[test]
fn guard_2_one_call_for_a_volume_at_a_time() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let fence = bench.take("fence");
    bench.wait(seconds(60));
    bench.changed();
    for _ in 0..20 {
        bench.turn();
        assert!(bench.pending.iter().all(|step| word(step) != "fence"));
    }
    bench.lose(&fence);
    bench.close();
}

#[test]
fn guard_3_a_call_given_up_keeps_the_journal_open_for_a_minute() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let fence = bench.take("fence");
    let given_up = bench.now;
    bench.lose(&fence);
    bench.close();
    assert!(
        bench.now - given_up >= seconds(60),
        "{:?}",
        bench.now - given_up
    );
    // The pod did not wait for that.
    assert_eq!(bench.count("delete pod"), 1);
}

#[test]
fn guard_4_a_new_leader_waits_for_the_old_ones_calls() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.crash();
    let adopted = bench.now;
    bench.close();
    assert!(
        bench.now - adopted >= seconds(15),
        "{:?}",
        bench.now - adopted
    );
}

#[test]
fn guard_5_another_attachment_is_deleted_by_its_own_uid() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    bench.cluster.attachments.clear();
    let new = bench.cluster.attach(&"pv1".into(), &A.into());
    bench.cluster.publish(&new);
    bench.cluster.note_attached(&new);
    bench.changed();
    bench.close();
    assert_eq!(bench.count(&format!("delete attachment {new}")), 1);
    assert!(
        bench.count("fence") >= 2,
        "the other one's publish is fenced again: {:?}",
        bench.log
    );
    assert!(!bench.cluster.can_write("pv1", A));
}

#[test]
fn guard_6_a_late_fence_is_told_and_its_victim_evacuated() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    let Step::Fence(fence) = bench.take("fence") else {
        panic!()
    };
    // Everything is over, by other hands, while the call hangs.
    let started = bench.now;
    let old = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.remove_pod(&old);
    bench.cluster.heal_node(A);
    bench.cluster.edit_node(A, |node| {
        node.journal = None;
        node.taints.clear();
    });
    let next = bench.cluster.run("db-0", A, &["pv1"]);
    bench.changed();
    bench.go("the survey", |bench| bench.evacuation.journal().is_none());
    bench.cluster.unpublish(&fence.handle, &fence.node);
    bench.deliver(Outcome::Fence {
        evacuation: fence.evacuation,
        volume: fence.volume,
        node: fence.node,
        started,
        result: Ok(()),
    });
    bench.go("the victim's end", |bench| {
        !bench.cluster.pods.contains_key(&next)
    });
    assert!(
        bench
            .events()
            .iter()
            .any(|event| event.starts_with("LateFence")),
        "{:?}",
        bench.events()
    );
    bench.close();
}

#[test]
fn an_attachment_that_turns_up_is_not_deleted_before_its_pod_is_looked_for() {
    let mut bench = Bench::failed_node();
    bench.until("patch");
    bench.perform(0);
    bench.go("the closing patch", |bench| {
        bench.pending.iter().any(|step| matches!(step, Step::Patch(patch)
            if patch.journal.as_ref().and_then(|journal| journal.as_ref()).is_some_and(|journal| journal.phase == Phase::Closed)))
    });
    // The patch lands, its answer does not come; the node requalifies and P' starts there.
    let Step::Patch(patch) = bench.take("patch") else {
        panic!()
    };
    bench.cluster.patch(&patch).expect("no conflict");
    bench.cluster.heal_node(A);
    bench.cluster.edit_node(A, |node| {
        node.journal = None;
        node.taints.clear();
    });
    bench.cluster.bind("db-0", A, &["pv1"]);
    let attachment = bench.cluster.attach(&"pv1".into(), &A.into());
    let seen = bench.cluster.attachments[&attachment].clone();
    let change = podmon::cluster::watch::Change::Applied(seen);
    bench.evacuation.observe(
        &podmon::controller::world::Observation::Attachment(change),
        bench.now,
    );
    bench.next();
    assert!(
        bench
            .pending
            .iter()
            .all(|step| word(step) != "delete attachment"),
        "{:?}",
        bench.pending
    );
}
