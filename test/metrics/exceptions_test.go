package metrics

// notExported are families of kube-apiserver that this server does not export, by prefix, with the reason.
var notExported = map[string]string{}
