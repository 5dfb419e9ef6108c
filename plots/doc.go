// Package plots owns the pictures: values that show an agent's episodes and a run's numbers in a notebook.
//
// Every view is a plain value with a MIME bundle (Display), which the soarbook kernel shows as a cell's result, and with a Show
// method for stock GoNB. Whatever an environment or a model wrote is escaped. Colours are Okabe and Ito's (2008), which
// colour-blind readers can tell apart; text and lines are greys that stand out from a light and from a dark page alike.
package plots
