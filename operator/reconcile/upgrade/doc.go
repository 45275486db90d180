// Package upgrade takes a backup before a change of the image that upgrades etcd, and holds the rollout until it is
// completed. Package backup has the rules.
//
// # Life of an upgrade
//
//   - Hold compares the etcd versions of the members that run the former image with the versions of the next image,
//     which are known once a member runs that image, or if it is the image of the operator.
//   - If a backup is required, Hold records its name together with both images in status.upgrade, and then creates the
//     ApiServerBackup. The destination is in the spec, or is the destination of the first backup schedule of the
//     cluster. Without a destination, it records that the backup is skipped, and the upgrade proceeds.
//   - While the backup is not completed, Hold returns a reason, with which membership.Plan restarts no outdated member.
//     Pods that have to be created are created with the former image.
//   - Once no member runs the former image, status.upgrade is removed.
//
// # Reads and writes
//
// The package reads status.upgrade, pods and members in the observation, the recorded ApiServerBackup (from the API
// server) and the backup schedules (from the cache). It writes status.upgrade with an optimistic lock, and creates the
// ApiServerBackup. It never deletes a backup.
//
// # Invariants
//
//   - Members of a cluster never all run the next minor version of etcd before the backup is completed, unless the
//     policy or the lack of a destination permits it: etcd then changes its storage, and the former version cannot read
//     it any more.
//   - The name of the backup is recorded before the backup is created, and contains the generation of the spec and a
//     part of the cluster's UID. Repeating the step creates no second backup, and a backup of a former cluster is not
//     mistaken for it.
//   - A failed backup is not repeated automatically: the user deletes it to take another one, or changes the policy.
//
// # Order, crashes and requeues
//
// Hold runs in the membership step, after the observation and before the plan. If the operator stops between the record
// and the creation, the backup counts as deleted, and the next reconciliation creates it. If Hold returns an error, the
// upgrade is held and all other actions continue. Nothing blocks but requests to the hosting cluster. Hold requests no
// reconciliation: a plan that waits is repeated frequently.
package upgrade
