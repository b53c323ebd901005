//! Requalification as a pure function: the truth table of protocol.md §4, what must never lift, and holes by number.

#[path = "node_requalify/world.rs"]
mod world;

mod cases {
    use super::world::*;
    use podmon::node::blocker::Blocker;
    use podmon::node::requalify::Verdict;
    use std::time::Duration;

    /// Every combination of taint and journal with a host that is clean, unclean and unknown, in one picture.
    #[test]
    fn every_row_of_the_protocol() {
        let journals = [
            "absent",
            "open",
            "closed",
            "unreadable",
            "newer",
            "foreign",
            "array lost",
        ];
        let hosts = ["clean", "zombie", "volume", "runtime down", "pods unknown"];
        let mut table = String::new();
        for tainted in [true, false] {
            for recreated in [false, true] {
                for journal in journals {
                    for host in hosts {
                        let mut world = World::new(journal);
                        world.tainted(tainted);
                        world.recreated = recreated;
                        match host {
                            "zombie" => world.run("gone", "db-0"),
                            "volume" => world.mount("gone", "pv1"),
                            "runtime down" => world.runtime_down(),
                            "pods unknown" => world.pods_unknown(),
                            _ => {}
                        }
                        let taint = if tainted { "taint" } else { "-" };
                        let anew = if recreated { "new Node" } else { "-" };
                        let verdict = world.verdict();
                        let word = match &verdict {
                            Verdict::Nothing => "nothing".to_owned(),
                            Verdict::Lift => "LIFT".to_owned(),
                            Verdict::RemoveJournal => "remove journal".to_owned(),
                            Verdict::Wait(b) => format!("wait: {}", kinds(b)),
                            Verdict::Clean(jobs, b) => {
                                format!("clean {}: {}", jobs.len(), kinds(b))
                            }
                            Verdict::PutTaintBack(b) => format!("TAINT BACK: {}", kinds(b)),
                            Verdict::TaintRecreated(_, b) => format!("TAINT: {}", kinds(b)),
                        };
                        table += &format!("{taint:5} {anew:8} {journal:10} {host:12} {word}\n");
                    }
                }
            }
        }
        insta::assert_snapshot!(table);
    }

    fn kinds(blockers: &[Blocker]) -> String {
        let kinds: Vec<_> = blockers.iter().map(Blocker::kind).collect();
        kinds.join(" ")
    }

    #[test]
    fn a_clean_host_lifts() {
        assert_eq!(World::new("closed").verdict(), Verdict::Lift);
    }

    #[test]
    fn s1_runtime_down_blocks() {
        let mut world = World::new("closed");
        world.mount("gone", "pv1");
        world.runtime_down();
        let verdict = world.verdict();
        assert!(
            matches!(&verdict, Verdict::Wait(b) if blocked(b, "RuntimeUnknown")),
            "not even cleaned: {verdict:?}"
        );
    }

    #[test]
    fn s1_a_runtime_that_knows_no_pod_is_the_wrong_one() {
        let mut world = World::new("closed");
        world.bind("app", "app-0");
        assert_eq!(world.verdict(), Verdict::Lift, "its sandbox runs");
        world.running_mut().pods.clear();
        assert!(blocked(world.verdict().blockers(), "WrongRuntime"));
    }

    #[test]
    fn s2_any_container_that_has_not_exited_blocks() {
        let mut world = World::new("closed");
        world.container("gone", "late");
        assert!(blocked(world.verdict().blockers(), "Container"));
    }

    /// S3 A and B: pods that run by the API, while the controller has not finished.
    #[test]
    fn s3_running_pods_do_not_free_the_node_before_the_controller_is_done() {
        let mut world = World::new("open");
        world.bind("app", "app-0");
        assert!(blocked(world.verdict().blockers(), "JournalOpen"));
    }

    /// S3 C: the successor has the same name on the same node; the old incarnation is told apart by its UID.
    #[test]
    fn s3_a_successor_of_the_same_name_does_not_hide_the_zombie() {
        let mut world = World::new("closed");
        world.bind("successor", "db-0");
        world.run("gone", "db-0");
        assert!(blocked(world.verdict().blockers(), "Sandbox"));
    }

    /// S4: everything is found on the host, nothing is remembered, and a pod that is in no journal counts.
    #[test]
    fn s4_an_unknown_pods_volume_blocks_a_restarted_sidecar() {
        let mut world = World::new("closed");
        world.mount("never-heard-of", "pv9");
        assert!(blocked(world.verdict().blockers(), "VolumePresent"));
    }

    #[test]
    fn s5_pods_that_cannot_be_listed_block_and_nothing_is_cleaned() {
        let mut world = World::new("closed");
        world.mount("gone", "pv1");
        world.pods_unknown();
        assert!(matches!(world.verdict(), Verdict::Wait(b) if blocked(&b, "PodsUnknown")));
    }

    #[test]
    fn s12_a_volume_that_another_pod_uses_stays_staged() {
        let mut world = World::new("closed");
        world.bind("other", "web-0");
        world.mount("gone", "pv1");
        world.mount("other", "pv1");
        world.stage("pv1");
        let Verdict::Clean(jobs, blockers) = world.verdict() else {
            panic!("{:?}", world.verdict())
        };
        assert_eq!(jobs.len(), 1);
        assert!(jobs[0].staging.is_empty(), "{jobs:?}");
        assert_eq!(jobs[0].targets.len(), 1);
        assert!(!blocked(&blockers, "Staged"));
        // And once the evacuated pod's own mount is gone, the other pod's is no reason to wait.
        world.unmount("gone", "pv1");
        assert_eq!(world.verdict(), Verdict::Lift);
    }

    #[test]
    fn s19_array_loss_keeps_the_taint_until_the_array_sees_the_node() {
        let world = World::new("array lost");
        assert!(blocked(world.verdict().blockers(), "ArrayLost"));
    }

    #[test]
    fn l11_a_sub_path_is_unmounted_before_its_volume() {
        let mut world = World::new("closed");
        world.mount("gone", "pv1");
        world.sub_path("gone", "pv1");
        let Verdict::Clean(jobs, _) = world.verdict() else {
            panic!()
        };
        let above = &jobs[0].targets[0].above;
        assert!(
            above[0].ends_with("volume-subpaths/pv1/main/0"),
            "{above:?}"
        );
    }

    #[test]
    fn l12_a_taint_taken_away_by_hand_comes_back_or_the_journal_goes() {
        let mut world = World::new("closed");
        world.tainted(false);
        assert_eq!(world.verdict(), Verdict::RemoveJournal);
        world.run("gone", "db-0");
        assert!(matches!(world.verdict(), Verdict::PutTaintBack(_)));
    }

    #[test]
    fn d8_a_volume_staged_where_we_cannot_see_waits_for_the_drivers_word() {
        let mut world = World::new("closed");
        world.staging_unseen();
        let Verdict::Clean(jobs, blockers) = world.verdict() else {
            panic!("{:?}", world.verdict())
        };
        assert!(blocked(&blockers, "StagingUnseen"));
        assert!(jobs[0].staging.len() >= 3, "{jobs:?}");
        world.unstaged("handle-pv1");
        assert_eq!(world.verdict(), Verdict::Lift);
    }

    #[test]
    fn d8_a_driver_that_does_not_stage_leaves_nothing_staged() {
        let mut world = World::new("closed");
        world.staging_unseen();
        world.stages = false;
        assert_eq!(world.verdict(), Verdict::Lift);
    }

    #[test]
    fn d13_an_inline_volume_of_ours_counts() {
        let mut world = World::new("closed");
        world.mount("orphan", "csi-4f2a");
        world.staging_unseen();
        world.unstaged("handle-pv1");
        let Verdict::Clean(jobs, blockers) = world.verdict() else {
            panic!("{:?}", world.verdict())
        };
        assert!(blocked(&blockers, "VolumePresent"));
        assert!(jobs[0].staging.is_empty(), "it is never staged: {jobs:?}");
    }

    #[test]
    fn the_kubelet_goes_first() {
        let mut world = World::new("closed");
        world.mount("gone", "pv1");
        world.kubelet_had = Duration::from_secs(19);
        assert!(matches!(world.verdict(), Verdict::Wait(_)));
        world.kubelet_had = Duration::from_secs(20);
        assert!(matches!(world.verdict(), Verdict::Clean(..)));
    }

    /// History "kubelet not yet started it": a directory without a volume counts in the kubelet's time only.
    #[test]
    fn a_pod_directory_counts_while_the_kubelet_is_young() {
        let mut world = World::new("closed");
        world.directory("gone");
        world.kubelet_had = Duration::from_secs(5);
        assert!(blocked(world.verdict().blockers(), "PodDirectory"));
        world.kubelet_had = Duration::from_secs(20);
        assert_eq!(world.verdict(), Verdict::Lift);
    }

    #[test]
    fn a_zombie_is_never_cleaned_under_its_feet() {
        let mut world = World::new("closed");
        world.mount("gone", "pv1");
        world.stage("pv1");
        world.run("gone", "db-0");
        assert!(matches!(world.verdict(), Verdict::Wait(_)));
    }

    #[test]
    fn an_open_journal_lets_only_released_pods_be_cleaned() {
        let mut world = World::new("open");
        world.mount("gone", "pv1");
        world.mount("listed", "pv2");
        world.stage("pv2");
        let Verdict::Clean(jobs, _) = world.verdict() else {
            panic!()
        };
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].volume.as_str(), "pv1");
    }

    #[test]
    fn volumes_of_another_driver_are_left_alone() {
        let mut world = World::new("closed");
        world.mount_of("orphan", "pv8", Some("csi.other.example"));
        assert_eq!(world.verdict(), Verdict::Lift);
    }

    #[test]
    fn a_volume_of_nobody_knows_whom_blocks_and_is_not_touched() {
        let mut world = World::new("closed");
        world.mount_of("orphan", "pv8", None);
        let verdict = world.verdict();
        assert!(
            matches!(&verdict, Verdict::Wait(b) if blocked(b, "VolumeUnknown")),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_static_pod_has_a_right_of_its_own() {
        let mut world = World::new("closed");
        world.run("static", "etcd-node");
        world
            .running_mut()
            .pods
            .get_mut(&"static".into())
            .unwrap()
            .fixed = true;
        assert_eq!(world.verdict(), Verdict::Lift);
    }

    #[test]
    fn without_a_journal_an_older_podmon_may_still_be_at_work() {
        let mut world = World::new("absent");
        assert_eq!(world.verdict(), Verdict::Lift);
        world.bind("app", "app-0");
        world.not_ready("app");
        assert!(blocked(world.verdict().blockers(), "PodNotReady"));
        let mut world = World::new("absent");
        world.tainted_for = Duration::from_secs(29);
        assert!(blocked(world.verdict().blockers(), "TaintFresh"));
    }

    #[test]
    fn a_detached_file_system_counts_until_it_is_closed() {
        let mut world = World::new("closed");
        world.detached = Ok(vec![podmon::node::detached::Detached {
            path: "/mnt".into(),
            device: (8, 16),
            source: "/dev/sdb".into(),
            boot: None,
        }]);
        assert!(blocked(world.verdict().blockers(), "Detached"));
        world.detached = Err(podmon::node::sight::Unseen::new("notes", "malformed"));
        assert!(blocked(world.verdict().blockers(), "Unseen"));
    }

    #[test]
    fn a_private_mount_of_the_driver_counts() {
        let mut world = World::new("closed");
        world.mounted_at("/var/lib/kubelet/plugins/driver/disks/handle-pv1");
        assert!(blocked(world.verdict().blockers(), "Mounted"));
    }

    #[test]
    fn a_loop_device_on_a_block_volume_counts() {
        let mut world = World::new("closed");
        world.block("gone", "pv1");
        let verdict = world.verdict();
        assert!(blocked(verdict.blockers(), "LoopDevice"), "{verdict:?}");
        assert!(blocked(verdict.blockers(), "BlockDevice"));
    }
}

mod properties {
    use super::world::*;
    use podmon::node::requalify::Verdict;
    use proptest::prelude::*;
    use std::time::Duration;

    /// One thing that may be wrong with a node.
    #[derive(Clone, Copy, Debug)]
    enum Wrong {
        Sandbox,
        Container,
        Mount,
        SubPath,
        Stage,
        Block,
        RuntimeDown,
        PodsUnknown,
        MountsUnknown,
        StagingUnseen,
        Open,
        Unreadable,
        ArrayLost,
        NotReady,
        Unreachable,
        StillBound,
        YoungKubeletAndDirectory,
    }

    fn wrong() -> impl Strategy<Value = Wrong> {
        use Wrong::*;
        prop::sample::select(vec![
            Sandbox,
            Container,
            Mount,
            SubPath,
            Stage,
            Block,
            RuntimeDown,
            PodsUnknown,
            MountsUnknown,
            StagingUnseen,
            Open,
            Unreadable,
            ArrayLost,
            NotReady,
            Unreachable,
            StillBound,
            YoungKubeletAndDirectory,
        ])
    }

    fn spoil(world: &mut World, wrong: Wrong) {
        match wrong {
            Wrong::Sandbox => world.run("gone", "db-0"),
            Wrong::Container => world.container("gone", "main"),
            Wrong::Mount => world.mount("gone", "pv1"),
            Wrong::SubPath => world.sub_path("gone", "pv1"),
            Wrong::Stage => world.stage("pv1"),
            Wrong::Block => world.block("gone", "pv1"),
            Wrong::RuntimeDown => world.runtime_down(),
            Wrong::PodsUnknown => world.pods_unknown(),
            Wrong::MountsUnknown => world.mounts_unknown(),
            Wrong::StagingUnseen => world.staging_unseen(),
            Wrong::Open => world.journal("open"),
            Wrong::Unreadable => world.journal("unreadable"),
            Wrong::ArrayLost => world.journal("array lost"),
            Wrong::NotReady => world.node.ready = false,
            Wrong::Unreachable => world.unreachable(),
            Wrong::StillBound => world.bind("gone", "db-0"),
            Wrong::YoungKubeletAndDirectory => {
                world.directory("gone");
                world.kubelet_had = Duration::from_secs(3);
            }
        }
    }

    proptest! {
        /// One wrong thing is enough, whatever else there is on the node.
        #[test]
        fn never_lifted_while_anything_is_wrong(
            first in wrong(),
            others in prop::collection::vec(wrong(), 0..3),
            rightful in 0usize..4,
            tainted: bool,
            had in 0u64..60,
        ) {
            let mut world = World::new("closed");
            world.tainted(tainted);
            world.kubelet_had = Duration::from_secs(had);
            for index in 0..rightful {
                world.bind(&format!("app-{index}"), &format!("app-{index}"));
                world.mount(&format!("app-{index}"), &format!("pv-app-{index}"));
            }
            // A journal replaces another one, so that the last of them decides; each is wrong by itself.
            for wrong in others.into_iter().chain([first]) {
                spoil(&mut world, wrong);
            }
            let verdict = world.verdict();
            let freed = matches!(verdict, Verdict::Lift | Verdict::RemoveJournal | Verdict::Nothing);
            prop_assert!(!freed, "{first:?}: {verdict:?}");
        }

        /// Nothing of a rightful pod is ever in a job, and no volume that one of them uses is unstaged.
        #[test]
        fn rightful_pods_are_never_touched(
            spoilt in prop::collection::vec(wrong(), 0..4),
            shared: bool,
        ) {
            let mut world = World::new("closed");
            world.bind("app", "app-0");
            world.mount("app", if shared { "pv1" } else { "pv-app" });
            world.stage("pv-app");
            for wrong in spoilt {
                spoil(&mut world, wrong);
            }
            if let Verdict::Clean(jobs, _) = world.verdict() {
                for job in jobs {
                    prop_assert!(job.targets.iter().all(|target| target.pod.as_str() != "app"));
                    let used = job.volume.as_str() == "pv-app"
                        || (shared && job.volume.as_str() == "pv1");
                    prop_assert!(!used || job.staging.is_empty(), "{job:?}");
                }
            }
        }
    }
}
