// Package panics turns panics into errors.
//
// A panic in a goroutine ends the process, and with it the work for all other objects and clusters. Background work
// that handles one object at a time calls Catch for each object: a panic is then reported as an error of that object,
// with the stack of its origin, and retried with the same delays as other errors.
package panics

import (
	"fmt"
	"runtime/debug"
)

// Panic is a panic as an error.
type Panic struct {
	Value any
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Unwrap returns the value of the panic if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Catch calls do and returns its error, or its panic as a *Panic.
func Catch(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{Value: value, Stack: debug.Stack()}
		}
	}()
	return do()
}
