//! The controller side over an array in this process: idempotence, troubles, the extension.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tonic::{Code, Request as Ask, Status};

use super::connectivity::ConnectivityService;
use super::controller::ControllerService;
use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume};
use crate::proto::csi::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, ListVolumesRequest, VolumeCapability,
};
use crate::proto::podmon::podmon_server::Podmon;
use crate::proto::podmon::{
    ValidateVolumeHostConnectivityRequest, ValidateVolumeHostConnectivityResponse,
};
use crate::storage::array::{Access, Array, Lie, Policy};
use crate::storage::door::Door;
use crate::storage::judge::judge;
use crate::storage::name::{Epoch, NodeId, VolumeId};
use crate::storage::trouble::{Call, Rule, Trouble};

/// One volume `v`, two nodes `a` and `b`, paused time.
struct Bench {
    array: Arc<Mutex<Array>>,
    controller: ControllerService,
    extension: ConnectivityService,
}

fn id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

impl Bench {
    fn new() -> Self {
        let mut array = Array::new(Policy::Permissive);
        array.create(&VolumeId::new("v").unwrap(), 1024).unwrap();
        for node in ["a", "b"] {
            array.seen(Duration::ZERO, &id(node)).unwrap();
        }
        let array = Arc::new(Mutex::new(array));
        let start = tokio::time::Instant::now();
        let door = Door::Here {
            array: Arc::clone(&array),
            now: Arc::new(move || start.elapsed()),
        };
        Self {
            array,
            controller: ControllerService {
                door: door.clone(),
                published_nodes: true,
            },
            extension: ConnectivityService { door },
        }
    }

    fn trouble(&self, call: Call, trouble: Trouble) {
        self.array
            .lock()
            .unwrap()
            .add_rule(Rule::all(call, trouble));
    }

    async fn publish(&self, node: &str) -> Result<Access, Status> {
        let request = ControllerPublishVolumeRequest {
            volume_id: "v".to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(capability()),
            ..ControllerPublishVolumeRequest::default()
        };
        let answer = self
            .controller
            .controller_publish_volume(Ask::new(request))
            .await?;
        let epoch: Epoch = answer.into_inner().publish_context[super::EPOCH]
            .parse()
            .unwrap();
        Ok(Access {
            volume: VolumeId::new("v").unwrap(),
            node: id(node),
            epoch,
        })
    }

    async fn unpublish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let answer = self
            .controller
            .controller_unpublish_volume(Ask::new(request))
            .await;
        answer.map(drop)
    }

    async fn ask(
        &self,
        node: &str,
        volumes: &[&str],
    ) -> Result<ValidateVolumeHostConnectivityResponse, Status> {
        let request = ValidateVolumeHostConnectivityRequest {
            node_id: node.to_owned(),
            volume_ids: volumes.iter().map(|v| (*v).to_owned()).collect(),
            ..ValidateVolumeHostConnectivityRequest::default()
        };
        let answer = self
            .extension
            .validate_volume_host_connectivity(Ask::new(request))
            .await;
        answer.map(tonic::Response::into_inner)
    }

    fn may_write(&self, by: &Access) -> bool {
        self.array
            .lock()
            .unwrap()
            .write(Duration::ZERO, by, 0, 1)
            .is_ok()
    }
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

#[tokio::test(start_paused = true)]
async fn publish_grants_and_unpublish_revokes_as_often_as_asked() {
    let bench = Bench::new();
    let access = bench.publish("a").await.unwrap();
    assert_eq!(bench.publish("a").await.unwrap(), access);
    assert!(bench.may_write(&access));
    for _ in 0..2 {
        bench.unpublish("v", "a").await.unwrap();
        assert!(!bench.may_write(&access));
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_counts_as_unpublished_but_is_not_published() {
    let bench = Bench::new();
    for (volume, node) in [("v", "x"), ("x", "a"), ("no/name", "a"), ("v", "no/name")] {
        bench.unpublish(volume, node).await.unwrap();
    }
    assert_eq!(
        bench.unpublish("", "a").await.unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(bench.publish("x").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn unpublish_without_a_node_takes_access_from_all() {
    let bench = Bench::new();
    let (a, b) = (
        bench.publish("a").await.unwrap(),
        bench.publish("b").await.unwrap(),
    );
    bench.unpublish("v", "").await.unwrap();
    assert!(!bench.may_write(&a) && !bench.may_write(&b));
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_does_nothing_says_ok_and_the_judge_finds_it() {
    let bench = Bench::new();
    bench.trouble(Call::ControllerUnpublish, Trouble::no_op());
    let a = bench.publish("a").await.unwrap();
    bench.unpublish("v", "a").await.unwrap();
    let b = bench.publish("b").await.unwrap();
    assert!(bench.may_write(&b) && bench.may_write(&a));
    assert!(!judge(bench.array.lock().unwrap().records()).is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_fence_whose_answer_is_lost_has_fenced() {
    let bench = Bench::new();
    let a = bench.publish("a").await.unwrap();
    let lost = Trouble::act_then_fail(Code::Unavailable, "connection reset");
    bench.trouble(Call::ControllerUnpublish, lost);
    let answer = bench.unpublish("v", "a").await.unwrap_err();
    assert_eq!(answer.code(), Code::Unavailable);
    assert!(!bench.may_write(&a));
}

#[tokio::test(start_paused = true)]
async fn a_refused_fence_has_not_fenced() {
    let bench = Bench::new();
    let a = bench.publish("a").await.unwrap();
    let refuse = Trouble::fail(Code::Internal, "array is busy");
    bench.trouble(Call::ControllerUnpublish, refuse);
    assert!(bench.unpublish("v", "a").await.is_err());
    // Nothing was answered as done, so this is no violation either.
    assert!(bench.may_write(&a));
    assert!(judge(bench.array.lock().unwrap().records()).is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_late_fence_acts_although_its_caller_has_given_up() {
    let bench = Bench::new();
    let a = bench.publish("a").await.unwrap();
    bench.trouble(
        Call::ControllerUnpublish,
        Trouble::late(Duration::from_secs(20)),
    );
    let given_up = tokio::time::timeout(Duration::from_secs(5), bench.unpublish("v", "a")).await;
    assert!(given_up.is_err());
    assert!(bench.may_write(&a));
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert!(!bench.may_write(&a));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_fence_neither_acts_nor_answers_and_one_that_hangs_afterwards_acts() {
    let bench = Bench::new();
    let a = bench.publish("a").await.unwrap();
    let hour = Duration::from_secs(3600);
    bench.trouble(Call::ControllerUnpublish, Trouble::hang());
    assert!(
        tokio::time::timeout(hour, bench.unpublish("v", "a"))
            .await
            .is_err()
    );
    assert!(bench.may_write(&a));
    bench.trouble(Call::ControllerUnpublish, Trouble::act_then_hang());
    assert!(
        tokio::time::timeout(hour, bench.unpublish("v", "a"))
            .await
            .is_err()
    );
    assert!(!bench.may_write(&a));
}

#[tokio::test(start_paused = true)]
async fn the_extension_tells_what_the_array_saw_unless_it_lies() {
    let bench = Bench::new();
    let a = bench.publish("a").await.unwrap();
    assert!(bench.may_write(&a));
    let said = bench.ask("a", &["v"]).await.unwrap();
    assert_eq!((said.connected, said.ios_in_progress), (true, true));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let said = bench.ask("a", &["v"]).await.unwrap();
    assert_eq!((said.connected, said.ios_in_progress), (false, false));
    let lie = Lie {
        connected: Some(true),
        io_in_progress: None,
    };
    bench.array.lock().unwrap().set_lie(&id("a"), lie);
    assert!(bench.ask("a", &[]).await.unwrap().connected);
    assert!(bench.ask("x", &[]).await.is_err());
    assert!(bench.ask("a", &["x"]).await.is_err());
    // Asked for nothing, it only shows that it exists.
    assert!(bench.ask("", &[]).await.is_ok());
    bench.trouble(
        Call::Connectivity,
        Trouble::fail(Code::Unimplemented, "no such method"),
    );
    assert_eq!(
        bench.ask("a", &[]).await.unwrap_err().code(),
        Code::Unimplemented
    );
}

#[tokio::test(start_paused = true)]
async fn volumes_are_made_once_listed_in_pages_and_kept_while_published() {
    let bench = Bench::new();
    for name in ["w", "x y"] {
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![capability()],
            ..CreateVolumeRequest::default()
        };
        let first = bench
            .controller
            .create_volume(Ask::new(request.clone()))
            .await
            .unwrap();
        let again = bench
            .controller
            .create_volume(Ask::new(request))
            .await
            .unwrap();
        assert_eq!(first.into_inner(), again.into_inner());
    }
    bench.publish("a").await.unwrap();
    let mut token = String::new();
    let mut listed = Vec::new();
    loop {
        let request = ListVolumesRequest {
            max_entries: 2,
            starting_token: token,
        };
        let page = bench
            .controller
            .list_volumes(Ask::new(request))
            .await
            .unwrap()
            .into_inner();
        assert!(page.entries.len() <= 2);
        for entry in page.entries {
            let nodes = entry.status.unwrap().published_node_ids;
            listed.push((entry.volume.unwrap().volume_id, nodes));
        }
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    let published = vec!["a".to_owned()];
    assert_eq!(
        listed,
        [
            ("v".to_owned(), published),
            ("w".to_owned(), Vec::new()),
            ("x_20y".to_owned(), Vec::new()),
        ]
    );
    let delete = |id: &str| DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..DeleteVolumeRequest::default()
    };
    let held = bench
        .controller
        .delete_volume(Ask::new(delete("v")))
        .await
        .unwrap_err();
    assert_eq!(held.code(), Code::FailedPrecondition);
    for _ in 0..2 {
        bench
            .controller
            .delete_volume(Ask::new(delete("w")))
            .await
            .unwrap();
    }
}
