package natsd

// StopJetStream does what the server does when its file system is full.
func (s *Server) StopJetStream() error { return s.ns.ShutdownJetStream() }
