// Package jsonpatch applies JSON patches (RFC 6902) and JSON merge patches (RFC 7386) to JSON documents.
//
// Results and errors are the same as with gopkg.in/evanphx/json-patch.v4, the library of kube-apiserver, even where the
// library differs from the standards: a path needs no leading slash, "-1" is the last element of a list, and "replace"
// adds a missing member to an object. There are two differences:
//
//   - The work for a patch is bounded. The library copies a list for every insertion, and parses and encodes each level
//     of a document with all levels below it: a patch within the size limit of request bodies can take minutes of CPU.
//   - If the library panics on a patch, this package applies the patch or returns ErrIncomplete.
//
// A document is a tree of nodes. A node refers to its part of the original text. It is split into its members when a
// path or a comparison first needs one of them, so that a small change of a large document is cheap. The text of values
// that a patch does not change is kept as it is: numbers keep their digits.
package jsonpatch
