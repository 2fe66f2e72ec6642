// Package testreq says what a machine must have for a test. With CI=true a
// missing part is a failure, because a suite that is always skipped proves
// nothing. Docker itself is the exception: a machine without it is a valid one,
// and other suites cover the behaviour; where it works, the images and Compose
// must be there.
package testreq

import (
	"os"
	"os/exec"
	"testing"
)

// Docker skips where Docker does not work.
func Docker(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("containers are slow: not with -short")
	}
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("Docker does not work here: %v: %.200s", err, out)
	}
}

// Image is Docker for a test of an image that must be on the machine.
func Image(t testing.TB, image string) {
	t.Helper()
	Docker(t)
	if !HasImage(image) {
		Missing(t, "image "+image+" is missing (make images)")
	}
}

// Compose is Docker for a test of Docker Compose.
func Compose(t testing.TB) {
	t.Helper()
	Docker(t)
	if exec.Command("docker", "compose", "version").Run() != nil && exec.Command("docker-compose", "version").Run() != nil {
		Missing(t, "neither the Compose plugin nor docker-compose is installed")
	}
}

// HasImage reports whether the image is on the machine.
func HasImage(image string) bool {
	return exec.Command("docker", "image", "inspect", image).Run() == nil
}

// Missing skips the test for the reason given; with CI=true it fails.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what + ": required with CI=true")
	}
	t.Skip(what)
}
