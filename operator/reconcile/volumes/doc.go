// Package volumes maintains the claims of members: their size, the labels and annotations by which they are found and
// recognized, and whether they outlive their member. It derives from the annotations whether the data in a volume has
// acknowledged writes that other members may lack.
//
// # Data
//
// A claim has the name of its member, and lives as long as the member: a pod is replaced with the same claim, a member
// with a new name gets a new claim. The annotations of a claim are facts that must not be lost with the status of the
// cluster, for example if the objects are restored from a backup of the hosting cluster, which has no status:
//
//   - MemberIDAnnotation: the member that has started on the volume. A volume with an ID that is empty has lost what
//     its member has voted with.
//   - LastHealthyWithAnnotation: the runs of the other members while this one was last healthy. As long as they
//     continue, the other members have all acknowledged writes of this one.
//   - LostWritesAnnotation: the member has acknowledged writes that the others lack. The value is the message with
//     which it has exited.
//   - UnprovenAnnotation: the member was removed while it was unknown whether the others have its writes.
//
// # Invariants
//
//   - A claim with an annotation of lost or unproven writes is released instead of deleted, whatever the spec says.
//     Only the user deletes it.
//   - A claim is deleted only as it was observed: another operator may have marked it since.
//   - A member starts only on the claim on which it has started before: the record of its pod (MemberRecord) has the
//     UID of the claim, and the member exits if its data is older than the record. A claim that was deleted and created
//     again counts as lost (Replaced).
//
// # Reads and writes
//
// The package reads claims and members in the observation, and status.members. Expand writes spec.resources of claims;
// Record, Keep, Release and Relabel write labels, annotations and owners; Delete deletes. forgetReplacedMembers removes
// the annotation ReplaceMembersAnnotation of the cluster. Changes are also made in the observation, so that the later
// steps of the reconciliation see them.
//
// # Order and crashes
//
// Relabel is part of the observation, before anything is planned: a claim that is not found would be replaced. Record
// follows the reading of the members, and precedes the membership actions, so that the facts about a member are stored
// before it can be stopped. Expand precedes the pods, because the quota of etcd follows the smallest volume. Keep,
// Release and Delete are membership actions. Each function makes one write per claim and can be repeated.
//
// # Requeues
//
// Claims are watched. A rejected expansion is tried in each reconciliation. Nothing blocks but requests to the hosting
// cluster.
package volumes
