package rollout

import "fmt"

// Source says who wrote a token of a trajectory.
type Source uint8

const (
	Prompt      Source = iota // the prompt, template included
	PolicyToken               // sampled by the policy, exactly as sampled; the only tokens with policy loss and KL
	Observation               // written by the environment: a search's block, template text around it
	Correction                // written by the environment after an invalid reply, template text around it
	Recall                    // what isolated recall said (SOAR), where an observation hands it back to the policy
	Edited                    // a reply that a person wrote in the policy's place: nobody sampled it, so no log-probability and no loss
)

var sourceNames = [...]string{"prompt", "policy", "observation", "correction", "recall", "edited"}

func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// MarshalText writes the source's name as trajectories are logged.
func (s Source) MarshalText() ([]byte, error) {
	if int(s) >= len(sourceNames) {
		return nil, fmt.Errorf("token source %d: got an unknown value, want one of %v", uint8(s), sourceNames)
	}
	return []byte(sourceNames[s]), nil
}

// UnmarshalText reads a source's name.
func (s *Source) UnmarshalText(text []byte) error {
	for i, name := range sourceNames {
		if string(text) == name {
			*s = Source(i)
			return nil
		}
	}
	return fmt.Errorf("token source %q: want one of %v; the log is from another version", text, sourceNames)
}
