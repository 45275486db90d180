// Command etcd is etcd in the version of the module graph, for tests that need it as a separate process.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
