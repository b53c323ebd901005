//! Histories that broke earlier drafts, each by its name.

use podmon::controller::step::Step;
use podmon::domain::NodeId;

use crate::bench::{A, Bench, seconds};
use crate::cluster::{names, node_id};

#[test]
fn reattach() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    let delete = bench.take("delete pod");
    // Somebody deletes the attachment; the pod is bound still, so it is made and published again.
    let old = bench
        .cluster
        .attachments
        .keys()
        .next()
        .cloned()
        .expect("an attachment");
    bench.cluster.detach(&old);
    let new = bench.cluster.attach(&"pv1".into(), &A.into());
    bench.cluster.publish(&new);
    bench.cluster.note_attached(&new);
    bench.evacuation.outdate(bench.now);
    bench.lose(&delete);
    bench.close();
    assert!(!bench.cluster.can_write("pv1", A) && bench.cluster.attachments.is_empty());
    assert!(
        bench.position("delete pod db-0") < bench.position(&format!("delete attachment {new}"))
    );
}

#[test]
fn republish() {
    let mut bench = Bench::failed_node();
    bench.rules.republishes = true;
    bench.kubernetes = false;
    bench.until("delete attachment");
    // The attacher finds the publish missing.
    let attachment = bench
        .cluster
        .attachments
        .keys()
        .next()
        .cloned()
        .expect("an attachment");
    bench.cluster.publish(&attachment);
    bench.perform(0);
    bench.go("a second fence", |bench| bench.count("fence") == 2);
    assert!(!bench.cluster.can_write("pv1", A));
    assert_eq!(bench.count("close"), 0);
    bench.kubernetes = true;
    bench.close();
}

#[test]
fn in_flight_publish() {
    let mut bench = Bench::new(|cluster| {
        cluster.add_volume("pv1");
        cluster.bind("db-0", A, &["pv1"]);
        cluster.attach(&"pv1".into(), &A.into());
        cluster.lose_node(A);
    });
    bench.kubernetes = false;
    bench.until("delete attachment");
    let attachment = bench
        .cluster
        .attachments
        .keys()
        .next()
        .cloned()
        .expect("an attachment");
    bench.cluster.publish(&attachment);
    bench.perform(0);
    bench.go("a second fence", |bench| bench.count("fence") == 2);
    assert!(!bench.cluster.can_write("pv1", A));
    bench.kubernetes = true;
    bench.close();
}

#[test]
fn no_second_fence_where_nothing_may_have_undone_the_first() {
    let mut bench = Bench::failed_node();
    bench.close();
    assert_eq!(bench.count("fence"), 1);
}

#[test]
fn cancel_against_resume() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    // Leader 1 sends nothing, the node heals, and it takes the journal back; the patch is slow.
    bench.pending.clear();
    bench.cluster.heal_node(A);
    let mut first = bench.evacuation.clone();
    let before = bench.cluster.journal(A).expect("a journal");
    // Leader 2 adopts.
    bench.crash();
    bench.until("fence");
    assert_ne!(bench.cluster.journal(A).expect("a journal").by, before.by);
    // Leader 1's late patch carries the version of what it read.
    first.outdate(bench.now);
    let late = podmon::cluster::NodePatch {
        node: A.into(),
        version: "1".into(),
        taints: None,
        journal: Some(None),
    };
    assert!(bench.cluster.patch(&late).is_err());
    bench.close();
    assert_eq!(bench.count("delete pod"), 1);
}

#[test]
fn cancel_is_not_for_whoever_resumes() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    bench.crash();
    bench.cluster.heal_node(A);
    bench.close();
    assert_eq!(
        (bench.count("patch away"), bench.count("delete pod")),
        (0, 1)
    );
    assert!(bench.count("fence") >= 1);
}

#[test]
fn term_not_holder() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    bench.crash();
    bench.next();
    // The same replica in another term: it adopts like any other.
    bench.until("patch");
    let Some(Step::Patch(patch)) = bench.pending.first() else {
        panic!()
    };
    let journal = patch.journal.clone().flatten().expect("a journal");
    assert_eq!(journal.by, "ctl-0/2");
}

#[test]
fn stale_announcement() {
    let mut bench = Bench::failed_node();
    bench.until("ask");
    // While the array is asked, P is replaced on the same node, which is well.
    let old = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.remove_pod(&old);
    bench.cluster.heal_node(A);
    let next = bench.cluster.run("db-0", A, &["pv1"]);
    bench.now = bench.now + seconds(3);
    bench.over();
    assert!(bench.cluster.pods.contains_key(&next) && bench.cluster.can_write("pv1", A));
    assert_eq!((bench.count("fence"), bench.count("delete")), (0, 0));
}

#[test]
fn guard_on_resume() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.pending.clear();
    // After the pod a new attachment was made, which no journal names.
    bench.cluster.attachments.clear();
    let new = bench.cluster.attach(&"pv1".into(), &A.into());
    bench.cluster.publish(&new);
    bench.cluster.note_attached(&new);
    bench.kubernetes = false;
    bench.crash();
    bench.until("delete attachment");
    assert!(!bench.cluster.can_write("pv1", A));
    bench.kubernetes = true;
    bench.close();
    assert_eq!(bench.count(&format!("delete attachment {new}")), 1);
}

#[test]
fn guard_on_resume_spares_a_volume_that_another_pod_here_uses() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.pending.clear();
    let other = bench.cluster.run("other", A, &["pv1"]);
    bench.cluster.edit_pod(&other, |pod| pod.protected = false);
    let fences = bench.count("fence");
    bench.crash();
    bench.pass(seconds(120));
    assert_eq!(bench.count("fence"), fences, "{:?}", bench.log);
    assert_eq!(bench.count("delete attachment"), 0);
    assert!(bench.cluster.pods.contains_key(&other));
}

#[test]
fn journal_taken_away_by_hand() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    let delete = bench.take("delete pod");
    bench.cluster.edit_node(A, |node| node.journal = None);
    bench.changed();
    bench.go("the journal", |bench| {
        bench
            .cluster
            .journal(A)
            .is_some_and(|journal| journal.is_open())
    });
    bench.pending.push(delete);
    bench.close();
    assert_eq!(bench.count("delete pod"), 1);
}

#[test]
fn taint_and_journal_taken_away_by_hand_is_the_operators_word() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.pending.clear();
    bench.kubernetes = false;
    bench.cluster.edit_node(A, |node| {
        node.journal = None;
        node.taints.retain(|taint| taint.key != names().taint);
    });
    bench.changed();
    bench.pass(seconds(60));
    assert!(bench.cluster.journal(A).is_none() && !bench.cluster.tainted(A));
}

#[test]
fn taint_as_evidence() {
    let mut bench = Bench::failed_node();
    bench.close();
    bench.cluster.heal_node(A);
    let uid = bench.cluster.run("db-1", A, &["pv1"]);
    bench.cluster.edit_pod(&uid, |pod| pod.ready = false);
    bench.log.clear();
    bench.changed();
    bench.pass(seconds(120));
    assert!(bench.cluster.tainted(A) && bench.cluster.pods.contains_key(&uid));
    bench.untouched();
}

#[test]
fn slow_fence_early_confirm() {
    let mut bench = Bench::new(|cluster| {
        ["pv1", "pv2"]
            .iter()
            .for_each(|volume| cluster.add_volume(volume));
        cluster.run("db-0", A, &["pv1"]);
        cluster.run("db-1", A, &["pv2"]);
        cluster.lose_node(A);
    });
    bench.until("fence");
    let fences = |bench: &Bench| {
        let fences = bench.pending.iter();
        fences.filter(|step| matches!(step, Step::Fence(_))).count()
    };
    while fences(&bench) < 2 {
        let other = bench
            .pending
            .iter()
            .position(|step| !matches!(step, Step::Fence(_)));
        bench.perform(other.expect("the other announcement"));
    }
    // One fence hangs, the other is withheld; the node heals: only what may have been fenced goes on.
    let hung = bench
        .pending
        .iter()
        .position(|step| matches!(step, Step::Fence(fence) if fence.volume.as_str() == "pv1"));
    let hung = bench.pending.remove(hung.expect("a fence of pv1"));
    let other = bench.take("fence");
    bench.cluster.heal_node(A);
    for uid in bench.cluster.pods.keys().cloned().collect::<Vec<_>>() {
        bench.cluster.edit_pod(&uid, |pod| pod.ready = true);
    }
    let Step::Fence(fence) = other else { panic!() };
    bench.evacuation.outdate(bench.now);
    bench.deliver(podmon::controller::step::Outcome::Fence {
        evacuation: fence.evacuation,
        volume: fence.volume,
        node: fence.node,
        started: bench.now,
        result: Err(podmon::controller::step::Unfenced::NeverSent(
            "refused".into(),
        )),
    });
    bench.pass(seconds(5));
    bench.lose(&hung);
    bench.close();
    assert_eq!(
        (
            bench.count("fence pv1"),
            bench.count("fence pv2"),
            bench.count("delete pod")
        ),
        (1, 0, 1),
        "{:?}",
        bench.log
    );
}

#[test]
fn unprotected_sharer() {
    let mut bench = Bench::new(|cluster| {
        cluster.add_volume("pv1");
        cluster.run("db-0", A, &["pv1"]);
        let other = cluster.run("backup", A, &["pv1"]);
        cluster.edit_pod(&other, |pod| pod.protected = false);
        cluster.lose_node(A);
    });
    bench.pass(seconds(120));
    bench.untouched();
    assert_eq!(bench.events().len(), 1);
    assert!(bench.events()[0].contains("backup"), "{:?}", bench.events());
}

#[test]
fn tolerating_pod() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.perform(0);
    bench.kubernetes = false;
    let comer = bench.cluster.bind("db-0", A, &["pv1"]);
    bench.changed();
    bench.kubernetes = true;
    bench.close();
    assert!(!bench.cluster.pods.contains_key(&comer), "{:?}", bench.log);
    assert!(
        bench
            .cluster
            .journal(A)
            .expect("a journal")
            .gone
            .contains(&comer)
    );
}

#[test]
fn wrong_id() {
    let mut bench = Bench::failed_node();
    bench
        .cluster
        .registered
        .insert(A.into(), NodeId::from("id-new"));
    bench
        .cluster
        .edit_node(A, |node| node.annotated_id = Some("id-older".into()));
    bench.close();
    for id in [node_id(&A.into()).as_str(), "id-new", "id-older"] {
        assert!(bench.position(&format!("fence pv1 {id}")) < bench.position("delete pod"));
    }
    assert!(!bench.cluster.can_write("pv1", A));
}

#[test]
fn wrong_id_the_attachments_own_must_say_ok() {
    let mut bench = Bench::failed_node();
    bench
        .cluster
        .registered
        .insert(A.into(), NodeId::from("id-new"));
    for round in 0..4 {
        bench.until("fence");
        let Step::Fence(fence) = bench.take("fence") else {
            panic!()
        };
        let own = fence.node == node_id(&A.into());
        assert!(!own || round < 3);
        bench.deliver(podmon::controller::step::Outcome::Fence {
            evacuation: fence.evacuation,
            volume: fence.volume,
            node: fence.node,
            started: bench.now,
            result: Err(podmon::controller::step::Unfenced::NotFound),
        });
        if round == 2 {
            break;
        }
    }
    assert_eq!(bench.count("delete pod"), 0, "{:?}", bench.log);
}

#[test]
fn tolerating_pod_comes_again_and_again_ever_more_slowly() {
    let mut bench = Bench::failed_node();
    bench.until("delete attachment");
    bench.perform(0);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let comer = bench.cluster.bind("db-0", A, &["pv1"]);
        let came = bench.now;
        bench.changed();
        bench.go("its end", |bench| !bench.cluster.pods.contains_key(&comer));
        waits.push((bench.now - came).as_secs());
    }
    assert!(
        waits.windows(2).all(|pair| pair[0] <= pair[1]) && waits[3] >= 3,
        "{waits:?}"
    );
}
