package main

import (
	"fmt"

	"quorate.dev/apiserver/config"
	"quorate.dev/plugin"
)

// exitCodes generates exit-codes.md.
func exitCodes(string) (string, error) {
	return fmt.Sprintf(`# Exit codes

%sResults are on standard output; errors, notes and progress on standard error.

| command | code | meaning |
| --- | --- | --- |
| all | 0 | success. Servers (%[2]s, %[3]s, %[4]s) exit with 0 after SIGTERM or SIGINT, when requests and processes have ended |
| all | 1 | an error, which is printed: a wrong flag or argument, no connection, no permission, a failed operation |
| %[2]s | %[5]d | the data of the embedded etcd member is damaged. The operator replaces such a member immediately, if the others have a quorum. Without the operator, restore a backup, or remove the data directory and add the member again |
| %[2]s | %[15]d | the data directory does not have the data that the embedded etcd member has voted with: it is empty, an earlier copy, or another member's. The operator replaces such a member, if the others have a quorum. See [etcd.md](../etcd.md#identity-of-a-member) |
| %[2]s | %[16]d | the embedded etcd member has acknowledged writes that the other members lack. The operator keeps its volume and reports %[17]s. See [etcd.md](../etcd.md#acknowledged-writes-that-are-lost) |
| %[6]s | %[7]d | an error: an invalid argument, no connection, no permission, an object that does not exist |
| %[6]s | %[8]d | a negative result: %[9]s found a cluster that needs attention, a backup failed, or %[10]s could not read any metrics |
| %[6]s | %[11]d | a timeout: the operation has not finished |
| %[12]s | 0 | the shell has exited, regardless of the exit code of its last command |

Called through the links %[13]s and %[14]s, the binary returns the exit codes of %[2]s and of etcd.
`, generated, "`quorate apiserver`", "`quorate operator`", "`quorate sandbox`",
		config.DamagedDataExitCode, "`kubectl quorate`", plugin.ExitError, plugin.ExitNegative, "`status`", "`top`",
		plugin.ExitTimeout, "`quorate sandbox shell`", "`kube-apiserver`", "`etcd`",
		config.LostDataExitCode, config.LostWritesExitCode, "`AcknowledgedWritesLost`"), nil
}
