// SPDX-License-Identifier: GPL-2.0-only

// heap: a Go program's heap. It keeps a map of values of many sizes, replaces and deletes
// at random, and lets the garbage collector run as it likes. At the end it compares each
// value, says "ready", and waits for its standard input to end.
package main

import (
	"fmt"
	"io"
	"os"
)

type value struct {
	key  uint64
	data []byte
}

func next(x *uint64) uint64 {
	*x ^= *x << 13
	*x ^= *x >> 7
	*x ^= *x << 17
	return *x
}

func make_value(key, draw uint64) *value {
	data := make([]byte, 32+draw%2048)
	for i := range data {
		data[i] = byte(key)
	}
	return &value{key, data}
}

func main() {
	const keys = 24000
	kept := map[uint64]*value{}
	x := uint64(88172645463325252)
	for i := 0; i < 4*keys; i++ {
		key := next(&x) % keys
		if next(&x)%4 == 0 {
			delete(kept, key)
		} else {
			kept[key] = make_value(key, next(&x))
		}
	}
	for key, v := range kept {
		for _, b := range v.data {
			if v.key != key || b != byte(key) {
				fmt.Fprintf(os.Stderr, "heap: The value of key %d is not what was stored.\n", key)
				os.Exit(1)
			}
		}
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}
